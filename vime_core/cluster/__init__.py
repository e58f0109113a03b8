"""Ray: placement, worker groups, and the keeper that ends what a run started."""
