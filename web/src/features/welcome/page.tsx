import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import clsx from "clsx";
import { Check, X } from "lucide-react";
import { useEffect, useState } from "react";
import { useCurrentUser, useMe } from "@/api/queries/account";
import { useAgents } from "@/api/queries/agents";
import { useProject, useUpdateProject } from "@/api/queries/projects";
import { useTask } from "@/api/queries/tasks";
import type { Agent, Project, Task } from "@/api/types";
import { ForgeNote } from "@/features/projects/forge-note";
import type { Settings } from "@/model/project-settings";
import { agentTitle } from "@/model/task-facts";
import { Page } from "@/ui/page";
import { showError } from "@/ui/toast";
import { AgentStep } from "./agent-step";
import { Progress } from "./progress";
import { RepositoryStep } from "./repository-step";
import { type Suggestion, TaskStep } from "./task-step";

const STEPS = ["Repository", "Agent", "Task"];

const LOOKS = {
  done: "border-ok text-soft",
  failed: "border-bad text-soft",
  now: "border-accent font-medium",
  ahead: "border-line text-faint",
};

/** Return the state of a step. If the agent lacks its model's key, the agent step has failed, not only the task. */
function stateOf(index: number, step: number, task: Task | null): keyof typeof LOOKS {
  if (!task) return index < step ? "done" : index === step ? "now" : "ahead";
  const attempt = task.attempts[0];
  const failed = attempt?.status === "failed" || attempt?.status === "cancelled";
  const code = failed ? attempt.errorCode : null;
  if (index === 1 && (code === "no_model" || code?.startsWith("model_"))) return "failed";
  if (index < 2) return "done";
  return failed ? "failed" : task.pullRequest ? "done" : "now";
}

/** Return a function that saves the agent as the project's default, so that other tasks use it too. The demo agent is never saved. */
function useSaveDefaultAgent(project: Project | null, onChanged: (project: Project) => void) {
  const user = useCurrentUser();
  const save = useUpdateProject({
    onSuccess: onChanged,
    onError: showError("Could not set the project's default agent"),
  });
  const saveAgent = async (agent: Agent | undefined) => {
    const mayChange = user?.role === "admin" || user?.id === project?.ownerId;
    if (!project || !agent || agent.demo || !mayChange || project.settings.agent?.default === agent.name) return;
    const changes = ({ settings }: Project) => ({
      settings: { ...settings, agent: { ...(settings as Settings).agent, default: agent.name } },
    });
    await save.mutateAsync({ id: project.id, changes }).catch(() => undefined); // the error is shown; the first task names the agent anyway
  };
  return { saveAgent, isSaving: save.isPending };
}

/** The selected project. On return from its settings, the URL contains it. */
function useChosenProject(onReturned: () => void): [Project | null, (project: Project) => void] {
  const { project: id } = useSearch({ from: "/inside/welcome" });
  const [chosen, setChosen] = useState<Project | null>(null);
  const returned = useProject(id ?? "", { enabled: id !== undefined && chosen === null }).data;
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs once, when the project is loaded
  useEffect(() => {
    if (!returned || chosen) return;
    setChosen(returned);
    onReturned();
  }, [returned]);
  return [chosen, setChosen];
}

/** The first run: three steps to the first pushed branch. */
export function WelcomePage() {
  const navigate = useNavigate();
  const agents = useAgents();
  const me = useMe();
  const [step, setStep] = useState(0);
  const [project, setProject] = useChosenProject(() => setStep(1));
  const [suggestions, setSuggestions] = useState<Suggestion[]>([]);
  const [picked, setPicked] = useState<string>();
  const [task, setTask] = useState<Task | null>(null);
  const currentTask = useTask(task?.id ?? "", { enabled: task !== null });
  const agent = picked ?? project?.defaultAgent ?? "demo";
  const chosen = agents.data?.find((candidate) => candidate.name === agent);
  const { saveAgent, isSaving } = useSaveDefaultAgent(project, setProject);
  return (
    <Page
      title="Welcome"
      actions={
        <Link to="/board" className="text-[13px] text-accent underline underline-offset-2">
          Skip to the board
        </Link>
      }
    >
      <p className="mb-4 max-w-prose text-soft">
        Give an agent its own computer and a task. You get its commits as a branch or a pull request to review.
      </p>
      <ol className="mb-5 flex gap-2" aria-label="Steps">
        {STEPS.map((name, index) => {
          const state = stateOf(index, step, currentTask.data ?? task);
          return (
            <li
              key={name}
              aria-current={state === "now" ? "step" : undefined}
              className={clsx("flex flex-1 items-center gap-2 border-t-2 pt-2 text-[13px]", LOOKS[state])}
            >
              {state === "done" ? (
                <Check className="size-4 text-ok" role="img" aria-label="done" />
              ) : state === "failed" ? (
                <X className="size-4 text-bad" role="img" aria-label="failed" />
              ) : (
                <span className="tabular-nums">{index + 1}</span>
              )}
              {name}
            </li>
          );
        })}
      </ol>
      {me.data && !me.data.hasPassword && step === 0 && (
        <p role="note" className="mb-4 rounded-md bg-info-soft px-2.5 py-1.5 text-[13px]">
          You signed in with a token that is not shown again.{" "}
          <Link
            to="/settings"
            search={{ tab: "profile", from: "welcome" }}
            className="text-accent underline underline-offset-2"
          >
            Set a password
          </Link>{" "}
          to sign in as {me.data.user.name} without it.
        </p>
      )}
      {project && step > 0 && <ForgeNote project={project} from="welcome" className="mb-4" />}
      {task ? (
        <Progress taskId={task.id} onRestart={() => setTask(null)} />
      ) : step === 0 ? (
        <RepositoryStep
          onDone={(created, ideas) => {
            setProject(created);
            void navigate({ to: "/welcome", search: { project: created.id }, replace: true });
            setPicked(undefined);
            setSuggestions(ideas);
            setStep(1);
          }}
        />
      ) : step === 1 ? (
        <AgentStep
          agent={agent}
          projectId={project?.id}
          busy={isSaving}
          onAgent={setPicked}
          onBack={() => setStep(0)}
          onDone={() => saveAgent(chosen).then(() => setStep(2))}
        />
      ) : (
        project && (
          <TaskStep
            project={project}
            agent={agent}
            agentName={chosen ? agentTitle(chosen) : agent}
            demo={chosen?.demo ?? agent === "demo"}
            suggestions={suggestions}
            onBack={() => setStep(1)}
            onDone={setTask}
          />
        )
      )}
    </Page>
  );
}
