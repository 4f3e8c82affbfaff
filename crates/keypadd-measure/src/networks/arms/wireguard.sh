until [ -S /run/wireguard/$dev.sock ]; do sleep 0.05; done
wg set $dev listen-port 51820 private-key $side.key peer $(cat $other.pub) \
  allowed-ips $their_net endpoint $them:51820
ip address add $inner/30 dev $dev
ip link set $dev mtu 1420 up
ip route add $their_net dev $dev
