for side in near far; do wg genkey >$side.key; wg pubkey <$side.key >$side.pub; done
