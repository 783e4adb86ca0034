import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import clsx from "clsx";
import { Check } from "lucide-react";
import { useState } from "react";
import { agents } from "@/api/queries";
import type { Project, Task } from "@/api/types";
import { Page } from "@/shell/page";
import { AgentStep } from "./agent-step";
import { Progress } from "./progress";
import { RepositoryStep } from "./repository-step";
import { type Suggestion, TaskStep } from "./task-step";

const STEPS = ["Repository", "Agent", "Task"];

/** From nothing to the first pushed branch in three steps. */
export function WelcomePage() {
  const known = useQuery(agents);
  const [step, setStep] = useState(0);
  const [project, setProject] = useState<Project | null>(null);
  const [suggestions, setSuggestions] = useState<Suggestion[]>([]);
  const [agent, setAgent] = useState("demo");
  const [task, setTask] = useState<Task | null>(null);
  const chosen = known.data?.find((one) => one.name === agent);
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
        Give an agent a computer of its own and a task. What it commits comes back as a branch, or a pull request, for
        you to review.
      </p>
      <ol className="mb-5 flex gap-2" aria-label="Steps">
        {STEPS.map((name, index) => (
          <li
            key={name}
            aria-current={index === step && !task ? "step" : undefined}
            className={clsx(
              "flex flex-1 items-center gap-2 border-t-2 pt-2 text-[13px]",
              index < step || task
                ? "border-ok text-soft"
                : index === step
                  ? "border-accent font-medium"
                  : "border-line text-faint",
            )}
          >
            {index < step || task ? (
              <Check className="size-4 text-ok" aria-label="done" />
            ) : (
              <span className="tabular-nums">{index + 1}</span>
            )}
            {name}
          </li>
        ))}
      </ol>
      {task ? (
        <Progress taskId={task.id} again={() => setTask(null)} />
      ) : step === 0 ? (
        <RepositoryStep
          onDone={(made, ideas) => {
            setProject(made);
            setSuggestions(ideas);
            setStep(1);
          }}
        />
      ) : step === 1 ? (
        <AgentStep agent={agent} onAgent={setAgent} onBack={() => setStep(0)} onDone={() => setStep(2)} />
      ) : (
        project && (
          <TaskStep
            project={project}
            agent={agent}
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
