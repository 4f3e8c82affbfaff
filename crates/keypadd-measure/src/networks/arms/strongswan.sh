cat >$side.strongswan.conf <<END
charon {
  load = random nonce openssl hmac kdf vici kernel-libipsec kernel-netlink socket-default
  filelog { stderr { default = 0 } }
}
swanctl { load = random openssl }
END
cat >$side.swanctl.conf <<END
connections { lab {
  version = 2
  local_addrs = $me
  remote_addrs = $them
  proposals = $ike
  local { auth = psk }
  remote { auth = psk }
  children { lab {
    local_ts = $net
    remote_ts = $their_net
    esp_proposals = $esp
  } }
} }
secrets { ike { secret = "$(cat secret)" } }
END
export STRONGSWAN_CONF=$PWD/$side.strongswan.conf
daemon /usr/lib/ipsec/charon
until [ -S /run/charon.vici ]; do sleep 0.05; done
swanctl --load-all --file $PWD/$side.swanctl.conf
case $side in
  near) until swanctl --initiate --child lab --timeout 2; do sleep 0.2; done;;
  far) until swanctl --list-sas | grep -q INSTALLED; do sleep 0.05; done;;
esac
