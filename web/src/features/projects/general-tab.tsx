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
              hint="What work starts from. Empty: the repository's default."
              error={fault("/baseBranch")}
            >
              {(wear) => (
                <Input
                  {...wear}
                  spellCheck={false}
                  placeholder="the repository's default"
                  value={value.baseBranch}
                  onChange={(event) => set({ baseBranch: event.target.value })}
                />
              )}
            </Field>
            <Field
              label="Repository"
              className="sm:col-span-2"
              hint="An https or ssh address without credentials in it. On another server, the stored credentials have to go first."
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
              label="Pause unused sandboxes after (seconds)"
              hint="Empty: as the platform says."
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

/** Putting it away, and taking it away. */
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
      toast.success(archived ? "It is back" : "Archived");
    },
    onError: failed(archived ? "Could not bring it back" : "Could not archive it"),
  });
  const remove = useMutation({
    mutationFn: () => got(api.DELETE("/api/v1/projects/{project_id}", path)),
    onSuccess: async () => {
      await navigate({ to: "/projects" });
      void client.invalidateQueries({ queryKey: ["projects"] });
      for (const noun of ["tasks", "board", "counts"]) void client.invalidateQueries({ queryKey: [noun] });
      toast.success(`${project.name} is deleted`);
    },
    onError: failed("Could not delete the project"),
  });
  return (
    <Section title="Archive and delete">
      <div className="divide-y">
        <Line
          text={
            archived
              ? "It is archived: not on the board, all of it kept."
              : "Take it from the board and the lists. All of it is kept."
          }
        >
          <Button disabled={frozen} busy={archive.isPending} onClick={() => archive.mutate()}>
            {archived ? "Bring back" : "Archive"}
          </Button>
        </Line>
        <Line text="Its tasks, schedules, secrets and credentials go with it. Its sessions stay their owners'. The repository is not touched.">
          <Confirm
            trigger={
              <Button look="danger" disabled={frozen}>
                Delete
              </Button>
            }
            title={`Delete ${project.name}?`}
            action="Delete the project"
            onConfirm={() => remove.mutateAsync()}
          >
            Its tasks and secrets go with it, and cannot be brought back. The repository itself is not touched.
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
