for side in near far; do
  quincy-identity noise genkey >$side.key
  quincy-identity noise pubkey <$side.key >$side.pub
done
