import { useNavigate } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { useArchiveProject, useDeleteProject } from "@/api/queries/projects";
import type { Project } from "@/api/types";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { NumberInput } from "@/ui/inputs";
import { Section } from "@/ui/page";
import { showError, toast } from "@/ui/toast";
import { useProjectForm, useReadOnlyReason } from "./project-form";

export function GeneralTab({ project }: { project: Project }) {
  const { draft, form, errorAt, settings } = useProjectForm(project);
  const { value, set } = draft;
  return (
    <>
      <Form {...form}>
        <Section title="General">
          <Fields>
            <Field label="Name" error={errorAt("/name")}>
              {(control) => (
                <Input {...control} value={value.name} onChange={(event) => set({ name: event.target.value })} />
              )}
            </Field>
            <Field
              label="Base branch"
              hint="The branch that work starts from. Leave empty for the repository's default."
              error={errorAt("/baseBranch")}
            >
              {(control) => (
                <Input
                  {...control}
                  spellCheck={false}
                  placeholder="repository default"
                  value={value.baseBranch}
                  onChange={(event) => set({ baseBranch: event.target.value })}
                />
              )}
            </Field>
            <Field
              label="Repository"
              className="sm:col-span-2"
              hint="An HTTPS or SSH URL without credentials. Before changing the server, remove the stored credentials."
              error={errorAt("/repository")}
            >
              {(control) => (
                <Input
                  {...control}
                  spellCheck={false}
                  className="font-mono !text-xs"
                  value={value.repository}
                  onChange={(event) => set({ repository: event.target.value })}
                />
              )}
            </Field>
            <Field
              label="Pause idle sandboxes after (seconds)"
              hint="Leave empty for the platform's default."
              error={errorAt("idleSeconds")}
            >
              {(control) => (
                <NumberInput
                  {...control}
                  min={5}
                  value={settings.idleSeconds}
                  onChange={(idleSeconds) => set({ settings: { ...settings, idleSeconds } })}
                />
              )}
            </Field>
          </Fields>
        </Section>
      </Form>
      <ArchiveAndDelete project={project} />
    </>
  );
}

/** Archive, unarchive or delete the project. */
function ArchiveAndDelete({ project }: { project: Project }) {
  const navigate = useNavigate();
  const frozen = Boolean(useReadOnlyReason(project));
  const archived = project.archivedAt !== null;
  const archive = useArchiveProject({
    onSuccess: () => toast.success(archived ? "Project unarchived" : "Project archived"),
    onError: showError(archived ? "Could not unarchive the project" : "Could not archive the project"),
  });
  const remove = useDeleteProject({
    leave: () => navigate({ to: "/projects" }),
    onSuccess: () => toast.success(`${project.name} deleted`),
    onError: showError("Could not delete the project"),
  });
  return (
    <Section title="Archive and delete">
      <div className="divide-y">
        <ActionRow
          text={
            archived
              ? "This project is archived: hidden from the board, with all its data kept."
              : "Hide the project from the board and from lists. All its data is kept."
          }
        >
          <Button
            disabled={frozen}
            busy={archive.isPending}
            onClick={() => archive.mutate({ id: project.id, archived: !archived })}
          >
            {archived ? "Unarchive" : "Archive"}
          </Button>
        </ActionRow>
        <ActionRow text="Deletes the project's tasks, schedules, secrets and credentials. Sessions stay with their owners, those of people who have left go to the project's owner; its restrictions still apply to them. The repository is not changed.">
          <Confirm
            trigger={
              <Button look="danger" disabled={frozen}>
                Delete
              </Button>
            }
            title={`Delete ${project.name}?`}
            action="Delete project"
            onConfirm={() => remove.mutateAsync(project.id)}
          >
            Its tasks and secrets are deleted permanently. The repository itself is not changed.
          </Confirm>
        </ActionRow>
      </div>
    </Section>
  );
}

function ActionRow({ text, children }: { text: string; children: ReactNode }) {
  return (
    <div className="flex flex-wrap items-center justify-between gap-3 px-4 py-3">
      <p className="min-w-0 flex-1 basis-64 text-[13px] text-soft">{text}</p>
      {children}
    </div>
  );
}
