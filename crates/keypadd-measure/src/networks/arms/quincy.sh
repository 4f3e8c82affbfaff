# The server gives addresses to clients and knows no networks behind them: the near gateway
# hides its network behind its own address.
cat >users.toml <<END
[users.near]
authorized_keys = ["$(cat near.pub)"]
END
case $side in
far)
  cat >far.toml <<END
name = "$dev"
tunnel_network = "10.86.4.1/24"
bind_address = "$me"
bind_port = 55555
users_file = "users.toml"
[protocol]
mode = "noise"
key_exchange = "Standard"
private_key = "$(cat far.key)"
[connection]
mtu = 1400
[log]
level = "error"
END
  daemon quincy-server --config-path far.toml
  until ip address show | grep -q 10.86.4.1; do sleep 0.05; done;;
near)
  cat >near.toml <<END
connection_string = "$them:55555"
[protocol]
mode = "noise"
key_exchange = "Standard"
private_key = "$(cat near.key)"
server_public_key = "$(cat far.pub)"
[connection]
mtu = 1400
[network]
routes = ["$their_net"]
[log]
level = "error"
END
  daemon quincy-client --config-path near.toml
  until ip route | grep -q $their_net; do sleep 0.05; done
  nft add table ip lab
  nft add chain ip lab out '{ type nat hook postrouting priority 100; }'
  nft add rule ip lab out oifname != outside oifname != inside masquerade;;
esac
