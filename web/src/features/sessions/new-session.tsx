import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, got } from "@/api/client";
import { agents as agentsQuery, projects as projectsQuery } from "@/api/queries";
import { needsKey, pickerTitle } from "@/features/agents/ready";
import { KeyNote } from "@/features/models/provider-help";
import { agentTitle } from "@/features/tasks/card-facts";
import { useStored } from "@/lib/stored";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { words } from "@/ui/states";

const NONE = "none";
const USUAL = "default";

/** Start a conversation with an agent, in a repository or in an empty sandbox. */
export function NewSessionDialog({
  open,
  onOpenChange,
  projectId,
}: {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  projectId?: string | undefined;
}) {
  return open ? <Form onOpenChange={onOpenChange} projectId={projectId} /> : null;
}

function Form({ onOpenChange, projectId }: { onOpenChange: (open: boolean) => void; projectId?: string | undefined }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const projects = useQuery(projectsQuery).data?.filter((one) => !one.archivedAt) ?? [];
  const agents = useQuery(agentsQuery).data ?? [];
  const [lastProject, rememberProject] = useStored("session.project", "");
  const [lastAgent, rememberAgent] = useStored("session.agent", "");
  const [title, setTitle] = useState("");
  const [chosenProject, setProject] = useState<string>();
  const [chosenAgent, setAgent] = useState<string>();
  const [model, setModel] = useState("");
  const [mode, setMode] = useState(USUAL);
  const [branch, setBranch] = useState("");
  const [template, setTemplate] = useState("");
  const usual = [projectId, lastProject].find((id) => projects.some((one) => one.id === id)) ?? projects[0]?.id ?? NONE;
  const project = chosenProject ?? (lastProject === NONE && !projectId ? NONE : usual);
  const agentName = chosenAgent ?? (agents.some((one) => one.name === lastAgent) ? lastAgent : USUAL);
  const named = projects.find((one) => one.id === project)?.defaultAgent;
  const own = agents.find((one) => (named ? one.name === named : one.default));
  const agent = agentName === USUAL ? own : agents.find((one) => one.name === agentName);

  const create = useMutation({
    mutationFn: () =>
      got(
        api.POST("/api/v1/sessions", {
          body: {
            title: title.trim() || null,
            projectId: project === NONE ? null : project,
            agent: agentName === USUAL ? null : agentName,
            model: model.trim() || null,
            mode: mode === USUAL ? null : mode,
            baseBranch: project === NONE ? null : branch.trim() || null,
            ...(template.trim() ? { template: template.trim() } : {}),
          },
        }),
      ),
    onSuccess: (session) => {
      rememberProject(project);
      rememberAgent(agentName === USUAL ? "" : agentName);
      client.setQueryData(["session", session.id], session);
      void client.invalidateQueries({ queryKey: ["sessions"] });
      void navigate({ to: "/sessions/$sessionId", params: { sessionId: session.id } });
    },
  });
  const submit = () => !create.isPending && create.mutate();
  return (
    <Dialog
      open
      onOpenChange={onOpenChange}
      title="New session"
      description="Chat with an agent in its own sandbox. Nothing is pushed unless you ask for it."
      footer={
        <>
          {create.error && (
            <p role="alert" className="mr-auto min-w-0 text-xs text-bad">
              {words(create.error)}
            </p>
          )}
          <Button onClick={() => onOpenChange(false)}>Cancel</Button>
          <Button look="primary" busy={create.isPending} onClick={submit}>
            Start session
          </Button>
        </>
      }
    >
      <form
        className="flex flex-col gap-3"
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <Field
          label="Project"
          hint={
            project === NONE
              ? "An empty sandbox, without a repository."
              : "Its repository is checked out on a new branch for this session."
          }
        >
          {(wear) => (
            <Select
              {...wear}
              value={project}
              onChange={(value) => setProject(value)}
              choices={[
                ...projects.map((one) => ({ value: one.id, label: one.name })),
                { value: NONE, label: "No project" },
              ]}
            />
          )}
        </Field>
        <Field label="Agent">
          {(wear) => (
            <Select
              {...wear}
              value={agentName}
              onChange={(value) => {
                setAgent(value);
                setModel("");
                setMode(USUAL);
              }}
              choices={[
                {
                  value: USUAL,
                  label: `${project === NONE ? "Platform default" : "Project default"}${own ? `: ${agentTitle(own)}` : ""}`,
                },
                ...agents.map((one) => ({
                  value: one.name,
                  label: pickerTitle(one, project === NONE ? null : project),
                  detail: one.description,
                })),
              ]}
            />
          )}
        </Field>
        {agent && needsKey(agent, project === NONE ? null : project) && (
          <KeyNote agent={agent} projectId={project === NONE ? undefined : project} />
        )}
        <div className="grid gap-3 sm:grid-cols-2">
          {(!agent || agent.apis.length > 0) && (
            <Field label="Model" hint="Leave empty for the default of the project or the agent.">
              {(wear) => (
                <>
                  <Input
                    {...wear}
                    list="session-models"
                    maxLength={200}
                    value={model}
                    onChange={(event) => setModel(event.target.value)}
                  />
                  <datalist id="session-models">
                    {agent?.models.map((one) => (
                      <option key={one} value={one} />
                    ))}
                  </datalist>
                </>
              )}
            </Field>
          )}
          {agent && agent.modes.length > 0 && (
            <Field label="Mode">
              {(wear) => (
                <Select
                  {...wear}
                  value={mode}
                  onChange={setMode}
                  choices={[
                    { value: USUAL, label: "Agent default" },
                    ...agent.modes.map((one) => ({ value: one, label: one })),
                  ]}
                />
              )}
            </Field>
          )}
          {project !== NONE && (
            <Field label="Base branch" hint="Leave empty for the project's.">
              {(wear) => (
                <Input {...wear} maxLength={250} value={branch} onChange={(event) => setBranch(event.target.value)} />
              )}
            </Field>
          )}
          <Field label="Template" hint="The sandbox's template. Leave empty for the default.">
            {(wear) => (
              <Input {...wear} maxLength={200} value={template} onChange={(event) => setTemplate(event.target.value)} />
            )}
          </Field>
        </div>
        <Field label="Title" hint="Optional">
          {(wear) => (
            <Input {...wear} maxLength={300} value={title} onChange={(event) => setTitle(event.target.value)} />
          )}
        </Field>
        <button type="submit" className="sr-only" tabIndex={-1} aria-hidden>
          Start session
        </button>
      </form>
    </Dialog>
  );
}
