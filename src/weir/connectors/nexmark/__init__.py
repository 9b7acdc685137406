"""The Nexmark benchmark's stream of an auction house."""
