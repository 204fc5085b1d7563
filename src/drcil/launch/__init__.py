"""The processes of one run: who they are, how they are started, how they meet and how they end together."""
