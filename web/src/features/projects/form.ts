import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, got } from "@/api/client";
import { me, project as oneProject } from "@/api/queries";
import type { Project } from "@/api/types";
import { merged } from "@/lib/merge";
import { fault } from "@/lib/problems";
import { type Draft, useDraft } from "@/ui/form";
import { toast } from "@/ui/toast";
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
  /** Change some of one part of the settings. */
  edit: <K extends Part>(part: K, patch: Partial<Settings[K]>) => void;
  /** What the platform says about a field of the settings (`agent.stuckMinutes`) or of the project (`/name`). */
  fault: (field: string) => string | undefined;
  /** What `Form` wants to know. */
  form: { draft: Draft<Written>; onSave: () => void; busy: boolean; error: unknown; frozen: string | undefined };
}

const written = (project: Project): Written => ({
  name: project.name,
  repository: project.repository ?? "",
  baseBranch: project.baseBranch ?? "",
  settings: project.settings as Settings,
});

/** Why the caller may not change the project; undefined: they may. */
export function useFrozen(project: Project): string | undefined {
  const caller = useQuery(me).data?.user;
  if (!caller || caller.role === "admin" || caller.id === project.ownerId) return undefined;
  return "You are a member of this project. Only its owner and administrators can change this.";
}

/** A project being changed. Saving reads it again first: what others have changed meanwhile is not lost. */
export function useProjectForm(project: Project): ProjectForm {
  const client = useQueryClient();
  const stored = written(project);
  const draft = useDraft(stored);
  const frozen = useFrozen(project);
  const save = useMutation({
    mutationFn: async () => {
      const mine = draft.value;
      const path = { params: { path: { project_id: project.id } } };
      const now = written(await got(api.GET("/api/v1/projects/{project_id}", path)));
      const body = {
        ...(mine.name !== stored.name && { name: mine.name }),
        ...(mine.repository !== stored.repository && { repository: mine.repository.trim() || null }),
        ...(mine.baseBranch !== stored.baseBranch && { baseBranch: mine.baseBranch.trim() || null }),
        settings: merged(stored.settings, mine.settings, now.settings),
      };
      return got(api.PATCH("/api/v1/projects/{project_id}", { ...path, body }));
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
    form: { draft, onSave: () => save.mutate(), busy: save.isPending, error: save.error, frozen },
  };
}
