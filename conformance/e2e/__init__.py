"""Layer `e2e`: one engine after another is driven through the same prompts, and what they answered is compared."""
