case $side in
  near) role="endpoint = \"$them:4433\"" listen=;;
  far) role="permit-networks = [\"$net\"]" listen="listen = \"$me:4433\"";;
esac
(umask 077; cat >$side.toml <<END
key = "$side.key"
$suite
${suite:+allow-legacy = true}
$listen
[peer.$other]
public-key = "$(cat $other.pub)"
$role
networks = ["$their_net"]
device = "$dev"
address = ["$inner/30"]
routes = "install"
END
)
daemon keypadd run --config $side.toml
until ip route | grep -q $their_net; do sleep 0.05; done
