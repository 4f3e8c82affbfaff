ip link add $dev type vxlan id 7 local $me remote $them dstport 4789 dev outside
ip address add $inner/30 dev $dev
ip link set $dev up
ip route add $their_net via $their_inner
