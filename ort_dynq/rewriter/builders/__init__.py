"""Parts of edits that several rules build."""
