case $side in near) role=--tls-client;; far) role="--tls-server --dh none";; esac
daemon openvpn --dev $dev --dev-type tun --proto udp4 --local $me --remote $them $role \
  --cert $side.crt --key $side.key --peer-fingerprint $(cat $other.print) \
  --ifconfig $inner $their_inner --disable-dco $ciphers
