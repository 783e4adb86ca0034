import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import { me, project as oneProject } from "@/api/queries";
import type { Project } from "@/api/types";
import { merged } from "@/lib/merge";
import { fault } from "@/lib/problems";
import { type Draft, useDraft } from "@/ui/form";
import { toast } from "@/ui/toast";
import { findingsOf } from "./findings";
import type { Part, Settings } from "./settings";

interface Written {
  name: string;
  repository: string;
  baseBranch: string;
  settings: Settings;
}

export interface ProjectForm {
  project: Project;
  draft: Draft<Written>;
  settings: Settings;
  /** Change some fields of one part of the settings. */
  edit: <K extends Part>(part: K, patch: Partial<Settings[K]>) => void;
  /** Return the platform's error for a field of the settings (`agent.stuckMinutes`) or of the project (`/name`). */
  fault: (field: string) => string | undefined;
  /** Props for `Form`. */
  form: {
    draft: Draft<Written>;
    onSave: () => void;
    /** Set after a failed connection test. */
    onForce: (() => void) | undefined;
    busy: boolean;
    error: unknown;
    frozen: string | undefined;
  };
}

const written = (project: Project): Written => ({
  name: project.name,
  repository: project.repository ?? "",
  baseBranch: project.baseBranch ?? "",
  settings: project.settings as Settings,
});

/** Return why the caller may not change the project; undefined if they may. */
export function useFrozen(project: Project): string | undefined {
  const caller = useQuery(me).data?.user;
  if (!caller || caller.role === "admin" || caller.id === project.ownerId) return undefined;
  return "You are a member of this project. Only its owner and administrators can change this.";
}

/**
 * A draft of a project. Saving reads the project again first, so that concurrent changes of others are not lost. `test` returns whether
 * the forge's API is tested before saving.
 */
export function useProjectForm(
  project: Project,
  { test = () => false }: { test?: (before: Settings, now: Settings) => boolean } = {},
): ProjectForm {
  const client = useQueryClient();
  const stored = written(project);
  const draft = useDraft(stored);
  const frozen = useFrozen(project);
  const save = useMutation({
    mutationFn: async (forced: boolean) => {
      const mine = draft.value;
      const path = { params: { path: { project_id: project.id } } };
      const now = written(await got(api.GET("/api/v1/projects/{project_id}", path)));
      const body = {
        ...(mine.name !== stored.name && { name: mine.name }),
        ...(mine.repository !== stored.repository && { repository: mine.repository.trim() || null }),
        ...(mine.baseBranch !== stored.baseBranch && { baseBranch: mine.baseBranch.trim() || null }),
        settings: merged(stored.settings, mine.settings, now.settings),
      };
      const query = { test: !forced && test(stored.settings, mine.settings) };
      return got(api.PATCH("/api/v1/projects/{project_id}", { params: { ...path.params, query }, body }));
    },
    onSuccess: (saved) => {
      client.setQueryData(oneProject(project.id).queryKey, saved);
      void client.invalidateQueries({ queryKey: ["projects"] });
      draft.take(written(saved));
      toast.success("Saved");
    },
  });
  return {
    project,
    draft,
    settings: draft.value.settings,
    edit: (part, patch) =>
      draft.set({ settings: { ...draft.value.settings, [part]: { ...draft.value.settings[part], ...patch } } }),
    fault: (field) => fault(save.error, field.startsWith("/") ? field.slice(1) : `settings.${field}`),
    form: {
      draft,
      onSave: () => save.mutate(false),
      onForce: findingsOf(save.error) ? () => save.mutate(true) : undefined,
      busy: save.isPending,
      error: save.error,
      frozen,
    },
  };
}
