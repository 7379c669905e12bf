"""What the blocks of each page find: files, the names that Python's blocks take as given, and what is run smaller here.

A page that is not here makes all that it needs.
"""

from __future__ import annotations

import gzip
import socket
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

import mgspmv as mg
from tests.support.certificates import make_certificates
from tests.support.running import Elsewhere, Scene

N = 120
with socket.create_server(("127.0.0.1", 0)) as found:
    PORT = found.getsockname()[1]
    """One that is free, for clusters that a page starts."""
GIVEN = {"mg": mg, "np": np}
"""What all Python on pages with a scene takes as imported."""


# --- files -----------------------------------------------------------------------------------------------------------


def make_arcs(n: int = N, seed: int = 0) -> np.ndarray:
    """Arcs of a strongly connected graph of vertices 0..n-1 with some hubs, (k, 2)."""
    rng = np.random.default_rng(seed)
    ring = np.column_stack([np.arange(n), np.roll(np.arange(n), -1)])
    return np.concatenate([ring, np.column_stack([rng.integers(0, n, 3 * n), rng.integers(0, n, 3 * n) ** 2 // n])])


def write_arcs(path: str, names: list[str] | None = None, *, seed: int = 0, comma: bool = False) -> None:
    """An edge list as SNAP publishes them, compressed where the name says so."""
    lines = ["# Directed graph", "# FromNodeId\tToNodeId"]
    separator = "," if comma else "\t"
    for i, j in make_arcs(seed=seed).tolist():
        lines.append(f"{i if names is None else names[i]}{separator}{j if names is None else names[j]}")
    data = "\n".join([*lines, ""]).encode()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(gzip.compress(data) if path.endswith(".gz") else data)


def make_web(path: str = "web.zarr", **options: Any) -> mg.MatrixInfo:
    """A store of these arcs."""
    return mg.ingest(tuple(make_arcs().T), path, duplicates="first", n_vertices=N, **options)


def make_laplacian(path: str = "a.zarr") -> None:
    """A grid's, (30, 30), symmetric, with eigenvalues between 0 and 4, and with its transpose."""
    line = [sp.diags_array([-0.5, 1.0, -0.5], offsets=[-1, 0, 1], shape=(n, n)) for n in (5, 6)]
    mg.ingest(sp.csr_array(sp.kronsum(*line)), path, transpose=True)


# --- pages -----------------------------------------------------------------------------------------------------------


def fill_readme(client: Any) -> dict[str, Any]:
    write_arcs("web-Google.txt.gz")
    np.save("x.npy", np.ones(N))
    return GIVEN | {"x": np.ones(N), "client": client}


def fill_batch(client: Any) -> dict[str, Any]:
    make_web()
    Path("seeds.csv").write_text("vector,vertex,weight\ncats,17,1\ncats,4,1\ndogs,23,3\n")
    return GIVEN | {"client": client, "seeds": [[17, 4], {23: 3.0}]}


def fill_centrality(client: Any) -> dict[str, Any]:
    names = ["home", *(f"page{k}" for k in range(1, N))]
    write_arcs("web.txt", names)
    mg.ingest("web.txt", "web.zarr", transpose=True, ids="string")
    make_laplacian()
    chain = sp.random_array((20, 20), density=0.3, rng=np.random.default_rng(1)) + sp.eye_array(20)
    mg.ingest(chain @ sp.diags_array(1 / chain.sum(axis=0)), "chain.zarr", kind="stochastic")
    Path("beta.txt").write_text("home 5.0\npage1 1.0\n")
    return GIVEN | {"client": client, "b": np.ones(30)}


def fill_checkpoints(client: Any) -> dict[str, Any]:
    make_web()
    return GIVEN


def fill_cluster(client: Any) -> dict[str, Any]:
    make_web()
    np.save("x.npy", np.ones(N))
    return GIVEN | {"client": client}


def fill_doctor(client: Any) -> dict[str, Any]:
    make_web()
    return {}


def fill_launching(client: Any) -> dict[str, Any]:
    make_certificates(Path("certificates").absolute())
    return {}


def fill_metrics(client: Any) -> dict[str, Any]:
    make_web()
    return GIVEN


def fill_nothing(client: Any) -> dict[str, Any]:
    return GIVEN


def fill_ingest(client: Any) -> dict[str, Any]:
    names = ["example.org", "example.com", *(f"site{k}.net" for k in range(2, N))]
    for seed in (1, 2):
        write_arcs(f"edges/{seed}.csv.gz", names, seed=seed, comma=True)
        write_arcs(f"plain/{seed}.csv", names, seed=seed, comma=True)
    table = pa.table({"source": [1, 2, 3], "target": [2, 3, 1]})
    for year in (2024, 2025):
        pq.write_table(table, f"{year}.parquet")
    import anndata

    cells = anndata.AnnData(np.ones((30, 2)), obsp={"connectivities": sp.csr_matrix(sp.eye_array(30, k=1))})
    cells.write_zarr("cells.zarr")
    frame = pd.DataFrame({"src": [1, 2], "dst": [2, 3], "weight": [0.5, 1.5]})
    return GIVEN | {"client": client, "frame": frame}


def fill_kernels(client: Any) -> dict[str, Any]:
    make_web()
    make_laplacian()
    np.save("x.npy", np.ones(30))
    return GIVEN | {"x": np.ones(N), "M": np.ones((4, N)), "b": np.ones(4)}


def fill_networkx(client: Any) -> dict[str, Any]:
    make_web(transpose=True)
    return GIVEN | {"G": nx.DiGraph(make_arcs().tolist())}


def fill_pagerank(client: Any) -> dict[str, Any]:
    write_arcs("web.txt")
    Path("new.csv").write_text("0,57\n121,3\n")
    Path("gone.csv").write_text("0,1\n")
    return GIVEN


def fill_pipelines(client: Any) -> dict[str, Any]:
    write_arcs("crawls/web.txt.gz")
    arcs = "\n".join(f"{i + 1} {j + 1}" for i, j in sorted(set(map(tuple, make_arcs(seed=3).tolist()))))
    text = f"%%MatrixMarket matrix coordinate pattern general\n{N} {N} {arcs.count(chr(10)) + 1}\n{arcs}\n"
    Path("crawls/wiki.mtx.gz").write_bytes(gzip.compress(text.encode()))
    Path("topics").mkdir()
    Path("topics/sports.csv").write_text("17 1.0\n23 2.0\n")
    return {}


def fill_report(client: Any) -> dict[str, Any]:
    make_web()
    with mg.open_matrix("web.zarr") as A:
        mg.pagerank(A).save("ranks.parquet")
    return {}


def fill_subgraph(client: Any) -> dict[str, Any]:
    names = [f"{letter}.{land}" for land in ("de", "fr") for letter in "abcdefgh"]
    arcs = [(names[k], names[(k + step) % 16]) for k in range(16) for step in (0, 1, 3)]
    mg.ingest(nx.DiGraph(arcs), "web.zarr")
    nofollow = sp.coo_array((np.ones(1, bool), ([0], [2])), shape=(16, 16))
    return GIVEN | {"nofollow": nofollow}


_CHAOS = Elsewhere("an hour", "tests/chaos/test_runs.py::test_faults")
_DEVICES = Elsewhere("needs GPUs", "tests/chaos/test_devices.py::test_a_rank_that_is_killed")
_SERVICE = Elsewhere(
    "needs root, and systemd",
    "tests/deploy/test_systemd.py::test_its_command_tells_when_it_is_ready_and_ends_with_all_it_started",
)
_NOHUP = Elsewhere("outlives the page", "tests/cli/test_signals.py::test_what_is_ignored_stays_ignored")
_UNIT = Elsewhere("needs systemd", "tests/cli/test_signals.py::test_a_second_signal_lets_the_command_end")
_IMAGE = Elsewhere("needs Docker", "tests/deploy/test_docker.py::test_commands_of_compose_and_image_exist")
_VERSIONS = Elsewhere(
    "needs a network", "tests/deploy/test_docker.py::test_constraints_have_a_version_of_all_that_is_required"
)
_PODS = Elsewhere("needs Kubernetes", "tests/deploy/test_kubernetes.py::test_all_is_valid_and_whole")
_SSH = Elsewhere("needs an SSH server", "tests/distribute/test_managers_external.py::test_pagerank_on_hosts")
_JOBS = Elsewhere("needs Slurm", "tests/distribute/test_managers_external.py::test_pagerank_in_jobs_of_slurm")
_JOBS_PBS = Elsewhere("needs PBS", "tests/distribute/test_managers.py::test_a_worker_for_each_gpu_of_jobs")
_KUBE = Elsewhere("needs Kubernetes", "tests/distribute/test_managers.py::test_a_worker_for_each_gpu_of_hosts_and_pods")
_BATCH = Elsewhere("needs Slurm", "tests/deploy/test_slurm.py::test_a_job_that_is_requeued_goes_on")
_BATCH_PBS = Elsewhere("needs PBS", "tests/deploy/test_pbs.py::test_a_command_on_two_nodes")
_WEB = Elsewhere("needs a network", "tests/ingest/test_remote.py::test_patterns_of_a_web_server")
_S3 = Elsewhere("needs a network", "tests/ingest/test_remote.py::test_texts_of_s3")
_BUCKETS = Elsewhere("needs an object store", "tests/system/test_object_stores.py::test_from_a_source_to_ranks")
_TLS = Elsewhere(
    "needs a cluster with TLS", "tests/distribute/test_tls.py::test_commands_of_dask_find_them_by_their_configuration"
)
_PAGES = Elsewhere("needs a cluster with TLS", "tests/distribute/test_tls.py::test_pages_are_seen_with_a_certificate")

SCENES = {
    "README.md": Scene(
        fill_readme,
        smaller={"--scale 26": "--scale 8", "--workers 4": "--workers 2"},
        afresh={
            'mg.ingest("web-Google.txt.gz"': "web.zarr",
            's.save("ranks.parquet")': "ranks.parquet",
            "-o ranks.parquet": "ranks.parquet",
        },
        elsewhere={
            "mgspmv pagerank web.zarr -o ranks.parquet --cluster ssh --cluster-option hosts=a,b,c": _SSH,
            "mgspmv pagerank web.zarr -o ranks.parquet --cluster slurm --workers 4": _JOBS,
        },
    ),
    "docs/batch.md": Scene(
        fill_batch, afresh={"-o ranks.parquet": "ranks.parquet", 'batch.save("ranks.parquet")': "ranks.parquet"}
    ),
    "docs/centrality.md": Scene(
        fill_centrality,
        smaller={"--workers 4": "--workers 2"},
        afresh={"-o authorities.parquet": "authorities.parquet", "-o katz.csv": "katz.csv"},
    ),
    "docs/checkpoints.md": Scene(fill_checkpoints, afresh={"--checkpoint run.zarr -o": "ranks.parquet"}),
    "docs/cluster.md": Scene(
        fill_cluster,
        smaller={
            "--workers 4": "--workers 2",
            "n_workers=4, threads_per_worker=2": "n_workers=2, threads_per_worker=1",
            "--scale 28": "--scale 8",
            "--device-memory 40GB": "--device-memory 4GB",
            'device_memory="40GB", host_memory="100GB"': 'device_memory="4GB", host_memory="8GB"',
        },
        afresh={"-o ranks.parquet": "ranks.parquet"},
        elsewhere={
            "mgspmv pagerank web.zarr --cluster slurm --workers 8 --cluster-option queue=gpu --cluster-option cores=32 "
            "--cluster-option memory=200GB --cluster-option gpus=4": _JOBS,
            "mgspmv pagerank /data/web.zarr -o ranks.parquet --cluster ssh --cluster-option hosts=gpu-1,gpu-1,gpu-2 "
            "--cluster-option gpus=4": _SSH,
            "mgspmv doctor /data/web.zarr --cluster ssh --cluster-option hosts=gpu-1,gpu-1,gpu-2 "
            """--cluster-option 'connect_options={username = "me", port = 2222}'""": _SSH,
        },
    ),
    "docs/doctor.md": Scene(fill_doctor),
    "docs/faults.md": Scene(
        elsewhere={
            "pytest -m weekly tests/chaos": _CHAOS,
            "python -m tests.support.chaos.devices --workers 2 4 --json gpus.json": _DEVICES,
        }
    ),
    "docs/kubernetes.md": Scene(
        elsewhere={
            "mgspmv pagerank s3://bucket/web.zarr -o ranks.parquet --cluster kubernetes --workers 4 "
            "--cluster-option image=registry.example.org/mgspmv:0.1.0 --cluster-option namespace=mgspmv": _KUBE,
            "kubectl create namespace mgspmv": _PODS,
            "kubectl apply -k deploy/kubernetes/overlays/cpu": _PODS,
            "kubectl --namespace mgspmv wait daskcluster/mgspmv "
            "--for=jsonpath='{.status.phase}'=Running --timeout=300s": _PODS,
            "kubectl --namespace mgspmv get daskclusters,pods": _PODS,
            "kubectl apply -k deploy/kubernetes/overlays/mine": _PODS,
            "kubectl --namespace mgspmv create job nightly-now --from=cronjob/mgspmv-nightly": _PODS,
            "kubectl --namespace mgspmv logs --follow job/nightly-now": _PODS,
            "kubectl apply -k deploy/kubernetes/overlays/mine-once": _PODS,
            "kubectl --namespace mgspmv get daskjob/mgspmv-job": _PODS,
            "kubectl --namespace mgspmv logs --follow pod/mgspmv-job-runner": _PODS,
            "kubectl --namespace mgspmv delete daskjob/mgspmv-job": _PODS,
            "kubectl --namespace mgspmv port-forward service/mgspmv-scheduler 8787:8787": _PODS,
            "kubectl --namespace mgspmv logs --selector dask.org/component=worker --prefix --tail 100": _PODS,
            "kubectl --namespace mgspmv get events --sort-by=.lastTimestamp": _PODS,
            "kubectl --namespace mgspmv create secret generic mgspmv-object-store "
            "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...": _PODS,
            "kubectl --namespace mgspmv create secret generic mgspmv-object-store-keys --from-file=key.json": _PODS,
            "kubectl --namespace mgspmv create secret generic mgspmv-object-store "
            "--from-literal=GOOGLE_APPLICATION_CREDENTIALS=/etc/mgspmv/keys/key.json": _PODS,
            "kubectl --namespace mgspmv create secret generic mgspmv-certificates "
            "--from-file=certificates/ca.pem --from-file=certificates/cert.pem "
            "--from-file=certificates/key.pem": _PODS,
            "kubectl --namespace mgspmv scale daskworkergroup/mgspmv-default --replicas=12": _PODS,
            "kubectl --namespace mgspmv patch cronjob/mgspmv-nightly "
            """--patch '{"spec": {"suspend": true}}'""": _PODS,
            "kubectl --namespace mgspmv delete daskcluster/mgspmv": _PODS,
            "kubectl --namespace mgspmv patch cronjob/mgspmv-nightly "
            """--patch '{"spec": {"suspend": false}}'""": _PODS,
            "kubectl delete -k deploy/kubernetes/overlays/mine": _PODS,
        }
    ),
    "docs/launching.md": Scene(
        fill_launching,
        smaller={
            "--port 8786": f"--port {PORT} --backend cpu --workers 1",
            "tcp://127.0.0.1:8786": f"tcp://127.0.0.1:{PORT}",
            "tls://127.0.0.1:8786": f"tls://127.0.0.1:{PORT}",
        },
        elsewhere={
            "useradd --system --no-create-home --shell /usr/sbin/nologin mgspmv": _SERVICE,
            "python3 -m venv /opt/mgspmv": _SERVICE,
            "install -m 644 deploy/systemd/mgspmv-cluster.service /etc/systemd/system/": _SERVICE,
            "systemctl enable --now mgspmv-cluster": _SERVICE,
            "systemctl status mgspmv-cluster": _SERVICE,
            "docker build --file deploy/docker/Dockerfile --tag mgspmv:0.1.0 .": _IMAGE,
            "docker run --detach --name mgspmv --gpus all --init --shm-size 4g --ulimit memlock=-1 --volume "
            "mgspmv-data:/data --volume mgspmv-cache:/var/cache/mgspmv mgspmv:0.1.0": _IMAGE,
            "docker exec mgspmv mgspmv generate rmat web.zarr --scale 24 --seed 1": _IMAGE,
            "docker exec mgspmv mgspmv pagerank web.zarr --scheduler tcp://127.0.0.1:8786 -o ranks.parquet": _IMAGE,
            "docker stop -t 60 mgspmv": _IMAGE,
            "docker build --file deploy/docker/Dockerfile --build-arg BASE=ubuntu:noble-20251013 --build-arg "
            "EXTRAS=remote,gcs,azure,tls --tag mgspmv:0.1.0 .": _IMAGE,
            "docker compose --file deploy/compose/compose.yaml up --build --detach --wait": _IMAGE,
            "docker compose --file deploy/compose/compose.yaml run --rm pipeline": _IMAGE,
            "docker compose --file deploy/compose/compose.yaml run --rm pipeline pagerank web.zarr "
            "--scheduler tcp://127.0.0.1:8786": _IMAGE,
            "docker compose --file deploy/compose/compose.yaml down": _IMAGE,
            "uv pip compile --universal --python-version 3.11 --no-annotate --extra cuda12 --extra remote "
            "--extra gcs --extra azure --extra tls pyproject.toml deploy/docker/build.in --output-file "
            "deploy/docker/constraints.txt --upgrade": _VERSIONS,
        },
    ),
    "docs/metrics.md": Scene(fill_metrics),
    "docs/dashboard.md": Scene(fill_nothing, smaller={"--workers 4": "--workers 2"}),
    "docs/ingest.md": Scene(
        fill_ingest,
        smaller={
            "'edges/*.csv' web.zarr": "'plain/*.csv' web.zarr",
            '"s3://bucket/edges/", "s3://bucket/web.zarr"': '"plain/", "web.zarr"',
        },
        afresh={
            "mgspmv ingest edges/ web.zarr": "web.zarr",
            "mg.ingest([": "web.zarr",
            "mg.ingest(frame": "web.zarr",
            "--scheduler": "web.zarr",
            "s3://bucket/web.zarr": "web.zarr",
        },
        elsewhere={
            "mgspmv ingest 'https://example.org/edges/*.csv.gz' web.zarr": _WEB,
            "AWS_PROFILE=research mgspmv ingest s3://bucket/edges/ web.zarr": _S3,
        },
    ),
    "docs/kernels.md": Scene(fill_kernels),
    "docs/networkx.md": Scene(fill_networkx),
    "docs/object-stores.md": Scene(
        elsewhere={
            command: _BUCKETS
            for place in ("s3://bucket", "gs://bucket", "az://container")
            for command in (
                f"mgspmv ingest {place}/edges.txt {place}/web.zarr",
                f"mgspmv pagerank {place}/web.zarr --cluster local --workers 2 --checkpoint {place}/run.zarr "
                f"-o {place}/ranks.zarr",
                f"mgspmv export {place}/web.zarr {place}/web.mtx",
            )
        }
    ),
    "docs/pagerank.md": Scene(fill_pagerank),
    "docs/pipelines.md": Scene(fill_pipelines),
    "docs/recovery.md": Scene(fill_cluster, afresh={"-o ranks.parquet": "ranks.parquet"}),
    "docs/report.md": Scene(fill_report),
    "docs/security.md": Scene(
        fill_nothing,
        elsewhere={
            "DASK_CONFIG=/etc/mgspmv/certificates/dask.yaml dask scheduler": _TLS,
            "DASK_CONFIG=/etc/mgspmv/certificates/dask.yaml dask worker tls://10.0.0.1:8786 --memory-limit 0": _TLS,
            "mgspmv pagerank web.zarr --scheduler tls://10.0.0.1:8786 --tls certificates": _TLS,
            'with use_tls("certificates"), Client("tls://10.0.0.1:8786") as client:\n'
            '    ranks = mg.pagerank(mg.open_matrix("web.zarr"), client=client)': _TLS,
            "curl --cacert certificates/ca.pem --cert certificates/cert.pem --key certificates/key.pem "
            "https://127.0.0.1:8787/metrics": _PAGES,
        },
    ),
    "docs/slurm.md": Scene(
        elsewhere={
            "sbatch --nodes 4 --gpus-per-node 4 --time 04:00:00 deploy/slurm/mgspmv.sbatch pagerank /shared/web.zarr "
            "-o /shared/ranks.parquet --overwrite --checkpoint /shared/run.zarr --resume": _BATCH,
            "sbatch --nodes 4 --gpus-per-node 4 deploy/slurm/mgspmv.sbatch run /shared/pipeline.toml": _BATCH,
            'qsub -v MGSPMV_COMMAND="run /shared/pipeline.toml" deploy/pbs/mgspmv.pbs': _BATCH_PBS,
            "qsub -l select=4:ncpus=64:mem=400gb:ngpus=4 -v MGSPMV_GPUS=4,"
            'MGSPMV_COMMAND="run /shared/pipeline.toml" deploy/pbs/mgspmv.pbs': _BATCH_PBS,
            "mgspmv pagerank /shared/web.zarr -o ranks.parquet --cluster slurm --workers 8 --cluster-option cores=16 "
            "--cluster-option memory=64GB --cluster-option walltime=02:00:00": _JOBS,
            "mgspmv pagerank /shared/web.zarr -o ranks.parquet --cluster slurm --workers 8 --cluster-option cores=64 "
            "--cluster-option memory=400GB --cluster-option gpus=4": _JOBS,
            "mgspmv pagerank /shared/web.zarr -o ranks.parquet --cluster pbs --workers 4 --cluster-option cores=64 "
            "--cluster-option memory=400GB": _JOBS_PBS,
        }
    ),
    "docs/subgraph.md": Scene(fill_subgraph),
    "docs/watching.md": Scene(
        elsewhere={
            "nohup mgspmv pagerank web.zarr -o ranks.parquet --checkpoint web.ckpt --log run.jsonl > run.out 2>&1 &": (
                _NOHUP
            ),
            "systemd-run --user --same-dir --unit ranks mgspmv pagerank web.zarr -o ranks.parquet --overwrite "
            "--log run.jsonl": _UNIT,
        }
    ),
}
