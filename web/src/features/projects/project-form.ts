import { fieldError } from "@/api/errors";
import { useCurrentUser } from "@/api/queries/account";
import { useUpdateProject } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { mergeChanges } from "@/lib/merge";
import { findingsOf } from "@/model/connection-test";
import type { Part, Settings } from "@/model/project-settings";
import { type Draft, useDraft } from "@/ui/form";
import { toast } from "@/ui/toast";

interface ProjectDraft {
  name: string;
  repository: string;
  baseBranch: string;
  settings: Settings;
}

export interface ProjectForm {
  project: Project;
  draft: Draft<ProjectDraft>;
  settings: Settings;
  /** Change some fields of one part of the settings. */
  edit: <K extends Part>(part: K, patch: Partial<Settings[K]>) => void;
  /** Return the platform's error for a field of the settings (`agent.stuckMinutes`) or of the project (`/name`). */
  errorAt: (field: string) => string | undefined;
  /** Props for `Form`. */
  form: {
    draft: Draft<ProjectDraft>;
    onSave: () => void;
    /** Set after a failed connection test. */
    onForce: (() => void) | undefined;
    busy: boolean;
    error: unknown;
    frozen: string | undefined;
  };
}

const draftOf = (project: Project): ProjectDraft => ({
  name: project.name,
  repository: project.repository ?? "",
  baseBranch: project.baseBranch ?? "",
  settings: project.settings as Settings,
});

/** Return why the user may not change the project; undefined if they may. */
export function useReadOnlyReason(project: Project): string | undefined {
  const user = useCurrentUser();
  if (!user || user.role === "admin" || user.id === project.ownerId) return undefined;
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
  const stored = draftOf(project);
  const draft = useDraft(stored);
  const frozen = useReadOnlyReason(project);
  const save = useUpdateProject({
    onSuccess: (saved) => {
      draft.replace(draftOf(saved));
      toast.success("Saved");
    },
  });
  const submit = (force: boolean) => {
    const mine = draft.value;
    save.mutate({
      id: project.id,
      test: !force && test(stored.settings, mine.settings),
      changes: (current) => ({
        ...(mine.name !== stored.name && { name: mine.name }),
        ...(mine.repository !== stored.repository && { repository: mine.repository.trim() || null }),
        ...(mine.baseBranch !== stored.baseBranch && { baseBranch: mine.baseBranch.trim() || null }),
        settings: mergeChanges(stored.settings, mine.settings, draftOf(current).settings),
      }),
    });
  };
  return {
    project,
    draft,
    settings: draft.value.settings,
    edit: (part, patch) =>
      draft.set({ settings: { ...draft.value.settings, [part]: { ...draft.value.settings[part], ...patch } } }),
    errorAt: (field) => fieldError(save.error, field.startsWith("/") ? field.slice(1) : `settings.${field}`),
    form: {
      draft,
      onSave: () => submit(false),
      onForce: findingsOf(save.error) ? () => submit(true) : undefined,
      busy: save.isPending,
      error: save.error,
      frozen,
    },
  };
}
