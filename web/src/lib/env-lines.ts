/** Format an argument or the value of a variable as one line. If it is empty or has line breaks or outer spaces, it is written as a JSON string. */
export function formatLine(value: string): string {
  return value === "" || value.startsWith('"') || value !== value.trim() || /[\n\r]/.test(value)
    ? JSON.stringify(value)
    : value;
}

export function parseLine(line: string): string {
  if (!line.startsWith('"')) return line;
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === "string" ? value : line;
  } catch {
    return line;
  }
}

/** Format variables as `NAME=value`. */
export function formatEnv(envs: Record<string, string>): string[] {
  return Object.entries(envs).map(([name, value]) => `${name}=${value === "" ? "" : formatLine(value)}`);
}

/** Parse the lines. Return the variables, or an error message for the first invalid line. */
export function parseEnv(lines: string[]): Record<string, string> | string {
  const envs: Record<string, string> = {};
  for (const line of lines) {
    const [, name, value] = /^([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) return `“${line}” is not a variable. Write NAME=value.`;
    envs[name] = parseLine(value);
  }
  return envs;
}
