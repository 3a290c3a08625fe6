"""`headrace keys`: API keys of tenants, made, listed and revoked in topology.yaml and in what runs."""
