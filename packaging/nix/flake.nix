# scripts/release fills in what is between two @.
{
  description = "@DESCRIPTION@";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
    source = {
      url = "@URL@/keypadd-@VERSION@.tar.gz";
      flake = false;
    };
  };

  outputs = { self, nixpkgs, source }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "keypadd";
          version = "@VERSION@";
          src = source;
          cargoLock.lockFile = "${source}/Cargo.lock";
          cargoBuildFlags = [ "--package" "keypadd" ];
          # The tests need what a build has not, such as a network of their own.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/keypadd man man
            installManPage man/*.1
            for shell in bash fish zsh; do
              $out/bin/keypadd completions $shell > keypadd.$shell
            done
            installShellCompletion keypadd.{bash,fish,zsh}
            install -Dm644 docs/keypadd.schema.json $out/share/keypadd/keypadd.schema.json
          '';
          meta = {
            description = "@DESCRIPTION@";
            homepage = "@URL@";
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "keypadd";
            platforms = systems;
          };
        };
      });
    };
}
