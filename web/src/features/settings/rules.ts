/** What the platform takes, said before it refuses the rest. */
export const PASSWORD_RULE = "At least 10 characters.";
export const NAME_RULE = "Letters, digits and . _ @ - are allowed.";
