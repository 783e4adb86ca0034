/** The platform's rules, shown before it rejects a value. */
export const PASSWORD_RULE = "At least 10 characters.";
export const NAME_RULE = "Letters, digits and . _ @ - only.";
