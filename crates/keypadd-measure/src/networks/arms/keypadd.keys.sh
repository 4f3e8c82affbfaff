for side in near far; do keypadd keygen $side.key >$side.pub 2>/dev/null; done
