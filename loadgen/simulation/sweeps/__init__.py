"""Many simulations side by side: resumable, on all cores, with confidence intervals."""
