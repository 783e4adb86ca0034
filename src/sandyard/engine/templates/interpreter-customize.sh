#!/bin/sh
# Puts the code interpreter's layer together, in mount and pid namespaces that end with it.
#   $1 the base's root   $2 the work directory: stage/ with Python's packages, rootfs/ for the layer
#   $3 the languages to add (java, r), separated by commas, or nothing
set -eu
base=$1 work=$2 extra=$3
. "${0%/*}/layered.sh"
open_root "$base" "$work"

echo "step 0.55 copying packages"
version=$(chroot "$root" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
packages=$root/usr/local/lib/python$version/dist-packages
mkdir -p "$packages" "$root/usr/local/share/jupyter/kernels"
# their own tests are a fifth of the scientific packages
for name in numpy pandas scipy sklearn sympy matplotlib xarray nltk joblib tornado mpl_toolkits; do
  [ ! -d "$work/stage/$name" ] || find "$work/stage/$name" -type d -name tests -prune -exec rm -rf {} +
done
rm -rf "$work/stage/share/jupyter/labextensions" "$work/stage/share/jupyter/kernels/python3"
for script in "$work"/stage/bin/*; do
  sed -i '1s|^#!.*python.*|#!/usr/bin/python3|' "$script" && chmod 0755 "$script"
done
cp -a --no-preserve=ownership "$work/stage/bin/." "$root/usr/local/bin/"
rm -rf "$work/stage/bin"
[ ! -d "$work/stage/share" ] || { cp -a --no-preserve=ownership "$work/stage/share/." "$root/usr/local/share/"; rm -rf "$work/stage/share"; }
cp -a --no-preserve=ownership "$work/stage/." "$packages/"
# as in the base: `pip install` works without sudo, and so does adding a kernel
chown -R --no-dereference 1000:1000 "$root/usr/local"

debian=
case ",$extra," in *,r,*) debian="r-base-core r-cran-irkernel" ;; esac
case ",$extra," in *,java,*) debian="$debian default-jdk-headless" ;; esac
if [ -n "$debian" ]; then
  echo "step 0.60 installing $extra"
  open_archives "$work"
  mkdir -p "$root/usr/share/man/man1" # the base is without manuals, and Java's packages do not bear it
  APT_CONFIG=/tmp/apt.conf DEBIAN_FRONTEND=noninteractive chroot "$root" sh -euc "
    apt-get -q update
    apt-get -qy install --no-install-recommends $debian
    apt-get clean"
  close_archives
fi
mkdir -p "$root/usr/local/share/jupyter/kernels/deno"
cat >"$root/usr/local/share/jupyter/kernels/deno/kernel.json" <<'EOF'
{"argv": ["deno", "jupyter", "--kernel", "--conn", "{connection_file}"], "display_name": "Deno", "language": "typescript",
 "env": {"NO_COLOR": "1"}}
EOF
chown -R 1000:1000 "$root/usr/local/share/jupyter/kernels/deno"
case ",$extra," in *,r,*)
  mkdir -p "$root/usr/local/share/jupyter/kernels/r"
  cat >"$root/usr/local/share/jupyter/kernels/r/kernel.json" <<'EOF'
{"argv": ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"], "display_name": "R", "language": "R"}
EOF
  ;;
esac

echo "step 0.75 compiling"
chroot "$root" python3 -m compileall -q -j 0 "/usr/local/lib/python$version/dist-packages" >/dev/null || :
chown -R --no-dereference 1000:1000 "$root/usr/local/lib/python$version"

# A template that lacks what is promised is not published. Matplotlib's list of fonts, which takes a second to make, stays.
echo "step 0.92 trying it out"
for who in root user; do
  chroot "$root" runuser -u "$who" -- env -i HOME="$(chroot "$root" sh -c "echo ~$who")" PATH=/usr/local/bin:/usr/bin:/bin MPLBACKEND=agg sh -euc '
    cd
    python3 -c "import bs4, e2b_charts, ipykernel.kernelapp, IPython, matplotlib.pyplot, numpy, openpyxl, pandas, PIL.Image, plotly, requests, scipy, seaborn, sklearn, sympy, bash_kernel, tornado"
    deno --version
    case ",'"$extra"'," in *,r,*) Rscript -e "library(IRkernel)" ;; esac
    case ",'"$extra"'," in *,java,*) java -version && test -s /usr/local/share/jupyter/kernels/java/kernel.json ;; esac'
done

close_root
rm -rf "$work/stage" "$work/overlay" "$work/apt.conf" "$work/ca.crt" "$work/resolv.conf"
