import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useAgents } from "@/api/queries/agents";
import { useProjects } from "@/api/queries/projects";
import { useCreateSession } from "@/api/queries/sessions";
import { modesOf } from "@/features/conversation/choices";
import { KeyNote } from "@/features/models/provider-help";
import { useStored } from "@/lib/stored";
import { needsKey, pickerTitle } from "@/model/agent-facts";
import { agentTitle } from "@/model/task-facts";
import { Button } from "@/ui/button";
import { Dialog } from "@/ui/dialog";
import { Field, Input, Select } from "@/ui/field";
import { errorMessage } from "@/ui/states";

const NONE = "none";
/** Not the name of an agent or a mode: Claude Code has a mode called "default". */
const DEFAULT = ":default";

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
  return open ? <NewSessionForm onOpenChange={onOpenChange} projectId={projectId} /> : null;
}

function NewSessionForm({
  onOpenChange,
  projectId,
}: {
  onOpenChange: (open: boolean) => void;
  projectId?: string | undefined;
}) {
  const navigate = useNavigate();
  const projects = useProjects().data?.filter((candidate) => !candidate.archivedAt) ?? [];
  const agents = useAgents().data ?? [];
  const [lastProject, rememberProject] = useStored("session.project", "");
  const [lastAgent, rememberAgent] = useStored("session.agent", "");
  const [title, setTitle] = useState("");
  const [chosenProject, setProject] = useState<string>();
  const [chosenAgent, setAgent] = useState<string>();
  const [model, setModel] = useState("");
  const [mode, setMode] = useState(DEFAULT);
  const [branch, setBranch] = useState("");
  const [template, setTemplate] = useState("");
  const suggested =
    [projectId, lastProject].find((id) => projects.some((candidate) => candidate.id === id)) ?? projects[0]?.id ?? NONE;
  const project = chosenProject ?? (lastProject === NONE && !projectId ? NONE : suggested);
  const agentName = chosenAgent ?? (agents.some((candidate) => candidate.name === lastAgent) ? lastAgent : DEFAULT);
  const chosen = projects.find((candidate) => candidate.id === project);
  const defaultName = chosen?.defaultAgent;
  const defaultAgent = agents.find((candidate) => (defaultName ? candidate.name === defaultName : candidate.default));
  const agent = agentName === DEFAULT ? defaultAgent : agents.find((candidate) => candidate.name === agentName);

  const modes = modesOf(undefined, agent, chosen);
  const projectMode = chosen?.settings.agent?.mode;
  const defaultMode = modes.find((item) => item.value === (projectMode ?? agent?.modes[0]))?.label ?? projectMode;

  const create = useCreateSession({
    onSuccess: (session) => {
      rememberProject(project);
      rememberAgent(agentName === DEFAULT ? "" : agentName);
      void navigate({ to: "/sessions/$sessionId", params: { sessionId: session.id } });
    },
  });
  const submit = () => {
    if (create.isPending) return;
    create.mutate({
      title: title.trim() || null,
      projectId: project === NONE ? null : project,
      agent: agentName === DEFAULT ? null : agentName,
      model: model.trim() || null,
      mode: mode === DEFAULT ? null : mode,
      baseBranch: project === NONE ? null : branch.trim() || null,
      ...(template.trim() ? { template: template.trim() } : {}),
    });
  };
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
              {errorMessage(create.error)}
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
          {(control) => (
            <Select
              {...control}
              value={project}
              onChange={(value) => setProject(value)}
              choices={[
                ...projects.map((item) => ({ value: item.id, label: item.name })),
                { value: NONE, label: "No project" },
              ]}
            />
          )}
        </Field>
        <Field label="Agent">
          {(control) => (
            <Select
              {...control}
              value={agentName}
              onChange={(value) => {
                setAgent(value);
                setModel("");
                setMode(DEFAULT);
              }}
              choices={[
                {
                  value: DEFAULT,
                  label: `${project === NONE ? "Platform default" : "Project default"}${defaultAgent ? `: ${agentTitle(defaultAgent)}` : ""}`,
                },
                ...agents.map((item) => ({
                  value: item.name,
                  label: pickerTitle(item, project === NONE ? null : project),
                  detail: item.description,
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
              {(control) => (
                <>
                  <Input
                    {...control}
                    list="session-models"
                    maxLength={200}
                    value={model}
                    onChange={(event) => setModel(event.target.value)}
                  />
                  <datalist id="session-models">
                    {agent?.models.map((value) => (
                      <option key={value} value={value} />
                    ))}
                  </datalist>
                </>
              )}
            </Field>
          )}
          {agent && agent.modes.length > 0 && (
            <Field label="Mode">
              {(control) => (
                <Select
                  {...control}
                  value={mode}
                  onChange={setMode}
                  choices={[
                    { value: DEFAULT, label: `Default${defaultMode ? `: ${defaultMode}` : ""}` },
                    ...modes.filter((item) => item.value !== (projectMode ?? agent.modes[0])),
                  ]}
                />
              )}
            </Field>
          )}
          {project !== NONE && (
            <Field label="Base branch" hint="Leave empty for the project's.">
              {(control) => (
                <Input
                  {...control}
                  maxLength={250}
                  value={branch}
                  onChange={(event) => setBranch(event.target.value)}
                />
              )}
            </Field>
          )}
          <Field label="Template" hint="The sandbox's template. Leave empty for the default.">
            {(control) => (
              <Input
                {...control}
                maxLength={200}
                value={template}
                onChange={(event) => setTemplate(event.target.value)}
              />
            )}
          </Field>
        </div>
        <Field label="Title" hint="Optional">
          {(control) => (
            <Input {...control} maxLength={300} value={title} onChange={(event) => setTitle(event.target.value)} />
          )}
        </Field>
        <button type="submit" className="sr-only" tabIndex={-1} aria-hidden>
          Start session
        </button>
      </form>
    </Dialog>
  );
}
