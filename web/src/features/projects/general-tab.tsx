import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { api, got } from "@/api/client";
import { project as oneProject } from "@/api/queries";
import type { Project } from "@/api/types";
import { Section } from "@/shell/page";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Fields, Form } from "@/ui/form";
import { NumberInput } from "@/ui/inputs";
import { failed, toast } from "@/ui/toast";
import { useFrozen, useProjectForm } from "./form";

export function GeneralTab({ project }: { project: Project }) {
  const { draft, form, fault, settings } = useProjectForm(project);
  const { value, set } = draft;
  return (
    <>
      <Form {...form}>
        <Section title="General">
          <Fields>
            <Field label="Name" error={fault("/name")}>
              {(wear) => <Input {...wear} value={value.name} onChange={(event) => set({ name: event.target.value })} />}
            </Field>
            <Field
              label="Base branch"
              hint="The branch that work starts from. Leave empty for the repository's default."
              error={fault("/baseBranch")}
            >
              {(wear) => (
                <Input
                  {...wear}
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
              error={fault("/repository")}
            >
              {(wear) => (
                <Input
                  {...wear}
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
              error={fault("idleSeconds")}
            >
              {(wear) => (
                <NumberInput
                  {...wear}
                  min={5}
                  value={settings.idleSeconds}
                  onChange={(idleSeconds) => set({ settings: { ...settings, idleSeconds } })}
                />
              )}
            </Field>
          </Fields>
        </Section>
      </Form>
      <End project={project} />
    </>
  );
}

/** Archive, unarchive or delete the project. */
function End({ project }: { project: Project }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const frozen = Boolean(useFrozen(project));
  const path = { params: { path: { project_id: project.id } } };
  const archived = project.archivedAt !== null;
  const archive = useMutation({
    mutationFn: () => got(api.PATCH("/api/v1/projects/{project_id}", { ...path, body: { archived: !archived } })),
    onSuccess: (saved) => {
      client.setQueryData(oneProject(project.id).queryKey, saved);
      void client.invalidateQueries({ queryKey: ["projects"] });
      toast.success(archived ? "Project unarchived" : "Project archived");
    },
    onError: failed(archived ? "Could not unarchive the project" : "Could not archive the project"),
  });
  const remove = useMutation({
    mutationFn: () => got(api.DELETE("/api/v1/projects/{project_id}", path)),
    onSuccess: async () => {
      await navigate({ to: "/projects" });
      void client.invalidateQueries({ queryKey: ["projects"] });
      for (const noun of ["tasks", "board", "counts"]) void client.invalidateQueries({ queryKey: [noun] });
      toast.success(`${project.name} deleted`);
    },
    onError: failed("Could not delete the project"),
  });
  return (
    <Section title="Archive and delete">
      <div className="divide-y">
        <Line
          text={
            archived
              ? "This project is archived: hidden from the board, with all its data kept."
              : "Hide the project from the board and from lists. All its data is kept."
          }
        >
          <Button disabled={frozen} busy={archive.isPending} onClick={() => archive.mutate()}>
            {archived ? "Unarchive" : "Archive"}
          </Button>
        </Line>
        <Line text="Deletes the project's tasks, schedules, secrets and credentials. Sessions stay with their owners. The repository is not changed.">
          <Confirm
            trigger={
              <Button look="danger" disabled={frozen}>
                Delete
              </Button>
            }
            title={`Delete ${project.name}?`}
            action="Delete project"
            onConfirm={() => remove.mutateAsync()}
          >
            Its tasks and secrets are deleted permanently. The repository itself is not changed.
          </Confirm>
        </Line>
      </div>
    </Section>
  );
}

function Line({ text, children }: { text: string; children: ReactNode }) {
  return (
    <div className="flex flex-wrap items-center justify-between gap-3 px-4 py-3">
      <p className="min-w-0 flex-1 basis-64 text-[13px] text-soft">{text}</p>
      {children}
    </div>
  );
}
