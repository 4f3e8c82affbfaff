# For a tap: Linux alone, as the program itself. scripts/release fills in what is between two @.
class Keypadd < Formula
  desc "@DESCRIPTION@"
  homepage "@URL@"
  url "@URL@/keypadd-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on "rust" => :build
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args
    generate_completions_from_executable(bin/"keypadd", "completions")
    system bin/"keypadd", "man", man1
    pkgshare.install "docs/keypadd.schema.json"
    doc.install "examples"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/keypadd --version")
    public_key = shell_output("#{bin}/keypadd keygen #{testpath}/key").strip
    assert_equal public_key, shell_output("#{bin}/keypadd pubkey #{testpath}/key").strip
  end
end
