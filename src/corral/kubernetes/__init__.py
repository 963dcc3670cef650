"""Gangs as pods: Corral decides, Kubernetes runs. Needs the extra ``kubernetes``; `cluster_api.connect` says so where
it is missing. Only `cluster_api` imports the client library, and only when it connects."""
