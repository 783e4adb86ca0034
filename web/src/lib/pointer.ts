/** Return whether the primary pointer is a finger. */
export const isCoarse = (): boolean => matchMedia("(pointer: coarse)").matches;
