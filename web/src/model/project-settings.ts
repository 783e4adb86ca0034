import type { ProjectSettings } from "@/api/types";

type Full<T> = T extends readonly (infer Item)[]
  ? Item[]
  : T extends object
    ? { [K in keyof T]-?: Full<Exclude<T[K], undefined>> }
    : T;

/** The settings as the platform returns them: all fields are set. */
export type Settings = Full<ProjectSettings>;
export type Part = Exclude<keyof Settings, "containers" | "hostLabels" | "idleSeconds" | "isolation" | "template">;
