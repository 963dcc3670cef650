"""Mistakes that people make at the command line, as they type them; ``test_mistakes`` checks every answer by rule.

``FILES`` are in the working folder. ``JOB`` stands for a job that waits, ``NODE`` for the node, ``AS_VIEWER`` at the
start of a line for a user who may only look, ``AWAY`` for a server that does not answer, ``WRONG`` for a wrong token.
"""

from __future__ import annotations

FILES = {
    "good.yaml": "command: 'true'\n",
    "typo.yaml": "comand: 'true'\n",
    "gpu-key.yaml": "command: 'true'\ngpuss: 2\n",
    "type.yaml": "command: 'true'\ngpus: many\n",
    "time.yaml": "command: 'true'\ntime_limit: 5\n",
    "memory.yaml": "command: 'true'\nmemory: 64\n",
    "letter.yaml": "command: 'true'\nmemory: 64G\n",
    "list.yaml": "- 1\n- 2\n",
    "empty.yaml": "",
    "broken.yaml": "command: [\n",
    "tabs.yaml": "command:\n\t- 'true'\n",
    "nothing.yaml": "name: x\n",
    "twice.yaml": "command: 'true'\ncommand: 'false'\n",
    "binary": "\x00\x01\x02",
    "slurm-time.sh": "#!/bin/sh\n#SBATCH --time=soon\ntrue\n",
    "slurm-option.sh": "#!/bin/sh\n#SBATCH --no-such-option\ntrue\n",
    "slurm-mem.sh": "#!/bin/sh\n#SBATCH --mem=lots\ntrue\n",
    "slurm-dep.sh": "#!/bin/sh\n#SBATCH --dependency=afterok\ntrue\n",
    "site.yaml": "keep_ended: 100\n",
    "batch-key.yaml": "comand: python worker.py\n",
    "batch-empty.yaml": "",
    "items.jsonl": "not json\n",
    "site-key.yaml": "qeues: []\n",
}

COMMANDS = """
stop
kill
delete
squeue
scancel
sinfo
sbatch
srun
list
jobs
cancle
sumbit
whyy
xyzzy
queue delete lab
queue xyzzy
node frobnicate
node delete NODE
user add mia
token delete x
token create
fleet delete x
secret add x
sim rum
db fix
config fix
--colour
ps --colour
"""

JOBS = """
submit
run
submit nosuch.yaml
submit typo.yaml
submit gpu-key.yaml
submit type.yaml
submit time.yaml
submit memory.yaml
submit letter.yaml
submit list.yaml
submit empty.yaml
submit broken.yaml
submit tabs.yaml
submit nothing.yaml
submit twice.yaml
submit binary
submit .
submit slurm-time.sh
submit slurm-option.sh
submit slurm-mem.sh
submit slurm-dep.sh
submit good.yaml more words
submit good.yaml -- true
submit --
submit --gpus many -- true
submit --gpus -1 -- true
submit --gpus 1.5 -- true
submit --gpus 100 -- true
submit --gpus B200:1 -- true
submit --gpus H100:x -- true
submit --cpus many -- true
submit --cpus 64000 -- true
submit --cpus -2 -- true
submit --memory 64 -- true
submit --memory 64G -- true
submit --memory lots -- true
submit --memory 10TB -- true
submit --memory -5GiB -- true
submit --disk 5 -- true
submit --vram 500GiB -- true
submit --gpus 1 --gpu-vram 500GB.. -- true
submit --gpus 1 --gpu-vram ..1GB -- true
submit --gpus 1 --gpu-vram x -- true
submit --gpus 1 --gpu-model H200 -- true
submit --tasks 0 -- true
submit --tasks many -- true
submit --tasks 8..2 -- true
submit --tasks 12 --gpus 1 -- true
submit --tasks 3 --gpus 8 -- true
submit --nodes 2 -- true
submit --nodes 0 -- true
submit --time-limit 5 -- true
submit -n many -- true
submit -n
submit --gres gpu:1:2:3 -- true
submit --mem lots -- true
submit --wrap
submit --time soon -- true
submit --time -5m -- true
submit --time 0s -- true
submit --time 5x -- true
submit --time 1:2:3:4 -- true
submit --time 1m1h -- true
submit --grace long -- true
submit --estimate x -- true
submit --queue nowhere -- true
submit --queue ../x -- true
submit --queue default/x/y -- true
submit --priority urgent -- true
submit --priority 99999999 -- true
submit --after 9999 -- true
submit -d afterok -- true
submit -d afterok:x -- true
submit -d sometimes:1 -- true
submit --array x -- true
submit --array 5-1 -- true
submit --array 0-99999999 -- true
submit --array 1-3%0 -- true
submit --env NOSUCHVARIABLE -- true
submit --env =x -- true
submit --label x -- true
submit --secret x -- true
submit --secret TOKEN=nosuch -- true
submit --set x -- true
submit --set nosuchkey=1 -- true
submit --set gpus=many -- true
submit --within spine -- true
submit --spread spine -- true
submit --prefer spine -- true
submit --tp 3 --gpus 8 -- true
submit --signal FOO@10s -- true
submit --begin yesterday -- true
submit --deadline 2001-01-01T00:00:00Z -- true
submit --retries many -- true
submit --umask 999 -- true
submit --image -- true
submit --mount x -- true
submit --resource licence -- true
submit --resource licence=1 -- true
submit --processes x -- true
submit --spares -1 -- true
submit --dry-run --gpus 100 -- true
submit --singleton -- true
submit --gpuss 1 -- true
run --gpus 100 -- true
run nosuch.yaml
show
show 9999
show x
show 0
show -1
show 1.5
why 9999
why x
logs
logs 9999
logs x
logs JOB --task x
logs JOB --stream both-of-them
logs JOB --tail many
wait
wait 9999
wait x
wait JOB --timeout soon
cancel
cancel 9999
cancel x
cancel JOB[99]
cancel JOB[
cancel JOB/nosuchrole
cancel --state over
cancel --before soon
cancel JOB --name x
hold
hold 9999
release
release 9999
requeue 9999
priority
priority high
priority urgent JOB
priority JOB
priority 99999999 JOB
priority 10 9999
ps --state over
ps --fields nosuch
ps --fields ,
ps --limit 0
ps --limit x
ps --since soon
ps --since 5
ps --label x
ps extra
"""

CLUSTER = """
queue show
queue show nowhere
queue set
queue set /x
queue set nowhere/child
queue set lab --guarantee gpu=4
queue set lab --guarantee gpus
queue set lab --guarantee gpus=some
queue set lab --guarantee gpus=-1
queue set lab --guarantee =4
queue set lab --guarantee gpu_milli=4000
queue set lab --limit memory=64
queue set lab --limit mem=64GiB
queue set lab --limit cpu=4
queue set lab --lend gpus=x
queue set lab --user-limit 4
queue set lab --guarantee gpus=4 --limit gpus=2
queue set lab --weight 0
queue set lab --weight heavy
queue set lab --max-jobs -1
queue set lab --budget lots
queue set lab --budget 100
queue set lab --budget 100h/soon
queue set lab --grace-max 5
queue set lab --priority-ceiling x
queue remove nowhere
queue list --fields nosuch
queue --fields nosuch
node show nosuch
node drain nosuch
node undrain nosuch
node undrain NODE
node cordon nosuch
node uncordon NODE
node cordon
node remove nosuch
node drill --gpu x
node drill --gpu 0
node drill --gpu 0 --throttle hot
node join
node token --expires soon
node list --fields nosuch
events --type JobEndde
events --type Foo
events --since soon
events --since -5
events --limit 0
events --job x
usage --since soon
usage --until 2026-13-45
usage --fields nosuch
user set
user set Bad Name
user remove nosuch
user grant mia
user grant mia boss
user grant nosuch member lab
user revoke nosuch member
user grant admin member nowhere
token make --expires soon
token make --user nosuch
token make --scope nosuch
token revoke nosuch
secret remove nosuch
secret set x --queue nowhere
secret list --fields nosuch
fleet show nosuch
fleet remove nosuch
fleet set
login --url x
completion tcsh
"""

SERVER = """
up --listen nowhere
up --listen 127.0.0.1:99999
up --fake-gpus many
up --config nosuch.yaml
up --config site.yaml
up --config site-key.yaml
up --tls-cert nosuch.pem
up --tls-cert nosuch.pem --tls-key nosuch.key
up --listen 0.0.0.0:0
up --policy nosuch
up --account nosuchaccount
up --database mysql://x
up --peer x
up --cluster --fake-gpus 8xH100
up --cluster --lease 1ms
up --agent-port 99999
up --connections 0
down --data nosuchfolder
down --timeout soon
config check nosuch.yaml
config check site-key.yaml
db verify --data nosuchfolder
db backup
testbed --nodes 0
testbed partition n1
sim run --trace nosuch
sim run --nodes x
sim run --policy nosuch
sim compare --trace nosuch
AWAY ps
AWAY submit good.yaml
AWAY cancel 1
AWAY node
AWAY events
WRONG ps
WRONG submit good.yaml
WRONG whoami
AS_VIEWER submit good.yaml
AS_VIEWER cancel JOB
AS_VIEWER priority high JOB
AS_VIEWER queue set lab --weight 2
AS_VIEWER queue remove default
AS_VIEWER node drain NODE
AS_VIEWER node cordon NODE
AS_VIEWER user set zoe
AS_VIEWER user grant zoe administrator
AS_VIEWER token make --user admin
AS_VIEWER secret set x
AS_VIEWER fleet remove x
"""

LATER = """
submit --after ok -- true
submit -d afterok:1:x -- true
submit --venv nosuchfolder -- true
submit --venv=nosuchfolder -- true
submit --stall-timeout soon -- true
submit --checkpoints yes -- true
submit train.py
submit python train.py
run train.py --lr 0.1
top 9999
top x
top --interval 0s
goodput x
goodput 9999
goodput --fields nosuch
exec
exec JOB
exec JOB -- true
exec 9999 -- true
exec x -- true
shell
shell JOB
shell 9999
step
step true
step --memory lots true
step --tasks 0 true
batch xyzzy
batch remove x
batch add x
batch create
batch create nosuch.yaml
batch create batch-key.yaml
batch create batch-empty.yaml
batch create items.jsonl
batch show nosuch
batch stats nosuch
batch flush nosuch
batch drain nosuch
batch delete nosuch
batch submit nosuch
batch submit nosuch items.jsonl
batch submit nosuch nosuch.jsonl
batch list --fields nosuch
checkpoint xyzzy
checkpoint rm x
checkpoint list
checkpoint list nosuchfolder
checkpoint list ftp://bucket/prefix
checkpoint show nosuchfolder job-1
checkpoint show . nosuch
checkpoint verify . nosuch
checkpoint verify . nosuch --step many
checkpoint prune . nosuch
checkpoint prune . nosuch --keep-last 0
checkpoint copy . nosuch elsewhere
checkpoint export . nosuch model.safetensors
checkpoint export . nosuch model.bin --format zip
queue line nowhere
queue line --limit 0
map --fields x
map extra
login
login --server x
login --server http://127.0.0.1:9 --token x
login --server http://example.org --token x
login --server URL --provider nosuch
login --server URL --id-token-file nosuch.jwt
login --server URL --id-token-variable NOSUCHVARIABLE
logout extra
open extra
user link nosuch
user link admin nosuchprovider
usage --since 2026-31-12
sim batch --rates fast
sim batch --size 0
sim batch --items many
sim training --gpus 0
sim training --interval soon
sim training --detect 5
AWAY open
AWAY batch
AWAY top
WRONG batch
WRONG map
AS_VIEWER batch create batch-key.yaml
AS_VIEWER exec JOB -- true
AS_VIEWER shell JOB
AS_VIEWER user link admin x
AS_VIEWER node remove NODE
"""

MISTAKES = [line for part in (COMMANDS, JOBS, CLUSTER, SERVER, LATER) for line in part.strip().splitlines()]
