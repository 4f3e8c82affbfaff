daemon tincd -c $side -D --pidfile=$side/pid
until ip link show $dev >/dev/null 2>&1; do sleep 0.05; done
ip address add $inner/30 dev $dev
ip link set $dev up
ip route add $their_net dev $dev
