const LABELS: Record<string, string> = { namespace: "Namespaces", gvisor: "gVisor" };

/** Return the name of an isolation level, as in the project settings. */
export const isolationLabel = (level: string): string => LABELS[level] ?? level;
