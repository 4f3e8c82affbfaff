for side in near far; do
  case $side in
    near) ip=$near_ip net=$near_net connect=ConnectTo=far;;
    far) ip=$far_ip net=$far_net connect=;;
  esac
  mkdir -p $side/hosts
  printf 'Name=%s\nMode=router\nInterface=tinc-%s\n%s\n' $side $side $connect >$side/tinc.conf
  printf 'Address=%s\nSubnet=%s\nCipher=aes-256-cbc\nDigest=sha256\n' $ip $net >$side/hosts/$side
  tincd -c $side -K 2048 </dev/null 2>/dev/null
done
cp near/hosts/near far/hosts/; cp far/hosts/far near/hosts/
