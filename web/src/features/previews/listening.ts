/** Whether a process listens on the port of a preview. Pure. */
import type { Schemas } from "@/api/client";

/** Return whether a process listens on the port; null if that is unknown, such as while the sandbox is paused. */
export function isListening(ports: Schemas["PortList"] | undefined, port: number): boolean | null {
  if (!ports || ports.sleeping) return null;
  return ports.items.some((listening) => listening.port === port);
}
