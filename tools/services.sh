#!/bin/sh
# Services that some tests need, installed from the distribution where that is possible: as root on Debian or Ubuntu.
# Quiet, and nothing is done twice. Elsewhere the tests that need them are skipped and say so. Nothing is started
# here: each test starts what it needs, in a folder of its own, and ends it.
#
#     tools/services.sh              all of them
#     tools/services.sh postgresql   only that one (or chromium, podman, ssh, ray, torch, frameworks, objects,
#                                  slurm, slurmdbd, slurmtools, etcd, rabbitmq, redis)
set -eu
TORCH=torch==2.13.0
MOTO="moto[s3,server]==5.2.5"
SLURM_TOOLS="submitit==1.5.4 dask-jobqueue==0.9.0 hydra-core==1.3.8 hydra-submitit-launcher==1.2.0"

# Whether a program is in the PATH. A function of this file may have its name, and is not meant.
has_program() (
    unset -f "$1" 2>/dev/null
    command -v "$1" >/dev/null
)

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install() { # service, packages...
    service=$1
    shift
    if ! can_install; then
        echo "services: $service is not here, so its tests are skipped; install it with: apt-get install $*" >&2
        return 0
    fi
    echo "services: installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1 || true
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        echo "services: $* could not be installed, so the tests of $service are skipped" >&2
}

# The server's programs; Debian keeps them out of the PATH. The package would also start a cluster: it is told not to.
postgresql() {
    command -v initdb >/dev/null && return 0
    for program in /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$program" ] && return 0
    done
    if can_install && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    install postgresql postgresql
}

# Chromium, in which the dashboard is tested.
chromium() {
    for program in chromium chromium-browser google-chrome; do
        has_program "$program" && return 0
    done
    install chromium chromium fonts-dejavu-core
}

# Podman, a runtime that takes a hybrid mount of cgroups, an init for containers, and what the image of the tests is
# made of. Tests start a service of their own and leave the machine's alone.
podman() {
    for program in podman runc catatonit busybox newuidmap; do
        has_program "$program" && continue
        install podman podman runc catatonit busybox-static uidmap
        return 0
    done
}

# An SSH server to log in to on loopback, with keys of the tests' own. The package would also start one for the machine:
# it is told not to (who wants that removes the file).
ssh() {
    [ -x /usr/sbin/sshd ] || command -v sshd >/dev/null && return 0
    if can_install; then
        mkdir -p /etc/ssh
        touch /etc/ssh/sshd_not_to_be_run
    fi
    install ssh openssh-server openssh-client
}

# Ray, in an environment of its own beside the checkout: what has it and what is tested never share one. The stamp is
# written last, so an interrupted installation is taken up again.
ray() {
    cd "$(dirname "$0")/.."
    cmp -s requirements/ray.txt .venv-ray/.installed && return 0
    echo "services: installing Ray into .venv-ray"
    if ${PYTHON:-python3} -m venv .venv-ray >/dev/null 2>&1 &&
        .venv-ray/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes \
            -r requirements/ray.txt >/dev/null 2>&1; then
        cp requirements/ray.txt .venv-ray/.installed
    else
        rm -rf .venv-ray
        echo "services: Ray could not be installed, so its tests are skipped" >&2
    fi
}

# An S3-compatible server, likewise: checkpoints in an object store are tested with it.
objects() {
    cd "$(dirname "$0")/.."
    [ "$(cat .venv-objects/.installed 2>/dev/null)" = "$MOTO" ] && return 0
    echo "services: installing $MOTO into .venv-objects"
    if ${PYTHON:-python3} -m venv .venv-objects >/dev/null 2>&1 &&
        .venv-objects/bin/python -m pip --disable-pip-version-check --no-input install --quiet "$MOTO" >/dev/null 2>&1; then
        echo "$MOTO" >.venv-objects/.installed
    else
        rm -rf .venv-objects
        echo "services: moto could not be installed, so the tests of object stores are skipped" >&2
    fi
}

# torch for the processor, likewise: gangs with real collectives are tested with it.
torch() {
    cd "$(dirname "$0")/.."
    [ "$(cat .venv-torch/.installed 2>/dev/null)" = "$TORCH" ] && return 0
    echo "services: installing $TORCH into .venv-torch"
    if ${PYTHON:-python3} -m venv .venv-torch >/dev/null 2>&1 &&
        .venv-torch/bin/python -m pip --disable-pip-version-check --no-input install --quiet "$TORCH" numpy \
            >/dev/null 2>&1; then
        echo "$TORCH" >.venv-torch/.installed
    else
        rm -rf .venv-torch
        echo "services: torch could not be installed, so its tests are skipped" >&2
    fi
}

# Lightning, Transformers and Accelerate, beside that torch: a .pth file makes it visible, so that it is not installed twice.
frameworks() {
    cd "$(dirname "$0")/.."
    [ -x .venv-torch/bin/python ] || return 0
    cmp -s requirements/frameworks.txt .venv-frameworks/.installed && return 0
    echo "services: installing training frameworks into .venv-frameworks"
    if ${PYTHON:-python3} -m venv .venv-frameworks >/dev/null 2>&1 &&
        .venv-frameworks/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps \
            --require-hashes -r requirements/frameworks.txt >/dev/null 2>&1; then
        .venv-torch/bin/python -c 'import site; print(site.getsitepackages()[0])' \
            >"$(.venv-frameworks/bin/python -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
        cp requirements/frameworks.txt .venv-frameworks/.installed
    else
        rm -rf .venv-frameworks
        echo "services: the training frameworks could not be installed, so their tests are skipped" >&2
    fi
}

# Ray Train, which needs Ray and that torch: .pth files make both visible. Not part of the tests: only `make
# bench-frameworks` asks for it.
raytrain() {
    cd "$(dirname "$0")/.."
    [ -x .venv-torch/bin/python ] && [ -x .venv-ray/bin/python ] || return 0
    cmp -s requirements/raytrain.txt .venv-raytrain/.installed && return 0
    echo "services: installing Ray Train into .venv-raytrain"
    if ${PYTHON:-python3} -m venv .venv-raytrain >/dev/null 2>&1 &&
        .venv-raytrain/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps \
            --require-hashes -r requirements/raytrain.txt >/dev/null 2>&1; then
        for other in .venv-torch .venv-ray; do
            $other/bin/python -c 'import site; print(site.getsitepackages()[0])'
        done >"$(.venv-raytrain/bin/python -c 'import site; print(site.getsitepackages()[0])')/more.pth"
        cp requirements/raytrain.txt .venv-raytrain/.installed
    else
        rm -rf .venv-raytrain
        echo "services: Ray Train could not be installed, so it is left out" >&2
    fi
}

# Tools that submit to Slurm, which tests run against Corral's commands of the same names.
slurmtools() {
    cd "$(dirname "$0")/.."
    [ "$(cat .venv-slurm-tools/.installed 2>/dev/null)" = "$SLURM_TOOLS" ] && return 0
    echo "services: installing $SLURM_TOOLS into .venv-slurm-tools"
    # shellcheck disable=SC2086
    if ${PYTHON:-python3} -m venv .venv-slurm-tools >/dev/null 2>&1 &&
        .venv-slurm-tools/bin/python -m pip --disable-pip-version-check --no-input install --quiet $SLURM_TOOLS >/dev/null 2>&1; then
        echo "$SLURM_TOOLS" >.venv-slurm-tools/.installed
    else
        rm -rf .venv-slurm-tools
        echo "services: the tools for Slurm could not be installed, so their tests are skipped" >&2
    fi
}

# Slurm with its controller, node daemons and munge. Tests start all of them in a folder of their own; the machine's own
# are not configured and do not start.
slurm() {
    for program in slurmctld slurmd munged sbatch; do
        has_program "$program" || [ -x "/usr/sbin/$program" ] && continue
        install slurm slurm-wlm munge
        return 0
    done
}

# etcd, which the API server of the tests' Kubernetes stores everything in. The package would also start it as a service:
# it is told not to by a policy that stands only while it is installed.
etcd() {
    has_program etcd && return 0
    policy=/usr/sbin/policy-rc.d
    if can_install && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
        install etcd etcd-server openssl xz-utils
        rm -f "$policy"
    else
        install etcd etcd-server openssl xz-utils
    fi
}

# Slurm's accounts and the database that they are in: its programs alone, without the service that the whole package
# would start. slurmdbd does not start without a configuration, of which there is none.
slurmdbd() {
    for program in slurmdbd mariadbd mariadb-install-db my_print_defaults; do
        has_program "$program" || [ -x "/usr/sbin/$program" ] && continue
        install slurmdbd slurmdbd mariadb-server-core mariadb-client-core
        return 0
    done
}

# Message brokers. Their packages would also start one for the machine each: they are told not to, once, while they are
# installed (a machine with its own policy keeps that one, and a broker that ran before is not touched).
quietly() { # service, packages...
    policy=/usr/sbin/policy-rc.d
    if can_install && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        install "$@"
        rm -f "$policy"
        if has_program systemctl; then
            systemctl disable --quiet "$1-server" >/dev/null 2>&1 || true
        fi
        return 0
    fi
    install "$@"
}

rabbitmq() {
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || has_program rabbitmq-server && return 0
    quietly rabbitmq rabbitmq-server
}

redis() {
    has_program redis-server && return 0
    quietly redis redis-server
}

[ "$#" -gt 0 ] || set -- postgresql chromium podman ssh slurm slurmdbd etcd rabbitmq redis ray torch frameworks objects slurmtools
for wanted in "$@"; do
    "$wanted"
done
