"""`headrace bench lifecycle`: everything is killed and changed once while requests run; what was lost?"""
