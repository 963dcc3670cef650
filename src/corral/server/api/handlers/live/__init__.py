"""What pages that stay open are drawn from: the cluster at one time, and then its changes."""
