for side in near far; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
    -subj /CN=$side -keyout $side.key -out $side.crt 2>/dev/null
  openssl x509 -in $side.crt -noout -fingerprint -sha256 | cut -d= -f2 >$side.print
done
