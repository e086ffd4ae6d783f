"""The ledger: which segments are admitted, which positions they have, and who may write."""
