import { draggable } from "@atlaskit/pragmatic-drag-and-drop/adapter/element-adapter";
import clsx from "clsx";
import {
  Ban,
  Bot,
  Box,
  ChevronsUp,
  CircleAlert,
  CircleCheck,
  CircleX,
  Clock,
  GitBranch,
  GitPullRequest,
  Hand,
  Layers,
} from "lucide-react";
import { type MouseEvent, memo, type ReactNode, useEffect, useRef, useState } from "react";
import type { Sandbox, TaskCard } from "@/api/types";
import { WorkTime } from "@/features/attempts/work-time";
import { plainText } from "@/lib/fences";
import { ESTIMATED, formatCost, pluralize } from "@/lib/format";
import { sanitizeHref } from "@/lib/links";
import { CHECKS, PULLS, SANDBOXES } from "@/model/status-labels";
import {
  currentAttempts,
  hasFailed,
  isRunning,
  leadingAttempt,
  modelOf,
  spentOn,
  taskStatus,
  timedAttempt,
  wasStopped,
} from "@/model/task-facts";
import { Badge } from "@/ui/badge";
import { Status } from "@/ui/status";
import { Ago } from "@/ui/time";
import { useActions } from "./actions";
import { CardMenuButton } from "./card-menu";

export interface CardProps {
  task: TaskCard;
  /** The project's name, if several projects are shown. */
  project: string | undefined;
  agent: string | undefined;
  sandbox: Sandbox["status"] | undefined;
  needsYou: boolean;
  /** Titles of the tasks that block it. */
  blockers: string | undefined;
  /** The position in the queue. */
  queuePosition: number | undefined;
  /** Whether the card is a tab stop: one card per column is. */
  tabStop: boolean;
}

const META = "inline-flex min-w-0 items-center gap-1";
const ICON = "size-3 shrink-0";

/** A task. Memoized, so that it re-renders only when its own data changes; the elapsed time updates separately. */
export const Card = memo(function Card({
  task,
  project,
  agent,
  sandbox,
  needsYou,
  blockers,
  queuePosition,
  tabStop,
}: CardProps) {
  const element = useRef<HTMLElement>(null);
  const [dragging, setDragging] = useState(false);
  const { handleKey, open } = useActions();
  useEffect(() => {
    if (!element.current) return;
    return draggable({
      element: element.current,
      getInitialData: () => ({ kind: "card", id: task.id }),
      onDragStart: () => setDragging(true),
      onDrop: () => setDragging(false),
    });
  }, [task.id]);
  const status = taskStatus(task, queuePosition);
  const failed = hasFailed(task) && !wasStopped(leadingAttempt(task));
  return (
    <article
      ref={element}
      data-testid="card"
      className={clsx(
        "flex cursor-grab flex-col gap-1.5 rounded-md border bg-surface p-2.5 text-xs has-[[data-card]:focus-visible]:border-accent",
        needsYou ? "border-warn" : failed && "border-bad",
        dragging && "opacity-40",
      )}
    >
      <div className="flex items-start gap-1">
        <h3 className="min-w-0 flex-1 text-[13px] leading-snug font-medium">
          {/* Not the router's Link, which subscribes to every URL change, once per card. */}
          <a
            href={`/tasks/${encodeURIComponent(task.id)}`}
            draggable={false}
            data-card={task.id}
            tabIndex={tabStop ? 0 : -1}
            aria-keyshortcuts="Alt+ArrowUp Alt+ArrowDown Alt+ArrowLeft Alt+ArrowRight"
            onKeyDown={(event) => handleKey(task, event)}
            onClick={(event) => {
              if (opensElsewhere(event)) return;
              event.preventDefault();
              open(task);
            }}
            className="line-clamp-3 break-words hover:text-accent"
          >
            {task.title}
          </a>
        </h3>
        <CardMenuButton task={task} tabStop={tabStop} />
      </div>
      {(status || needsYou || task.priority !== 0) && (
        <div className="flex flex-wrap items-center gap-1">
          {needsYou && (
            <Badge tone="warn">
              <Hand className={ICON} aria-hidden /> Needs you
            </Badge>
          )}
          {status && !(needsYou && status.busy) && <Status status={status} />}
          {task.priority !== 0 && (
            <Badge title="Higher priorities start first">
              <ChevronsUp className={clsx(ICON, task.priority < 0 && "rotate-180")} aria-hidden />
              <span className="sr-only">Priority</span> {task.priority}
            </Badge>
          )}
        </div>
      )}
      {failed && task.error && <p className="line-clamp-6 break-words text-bad">{plainText(task.error)}</p>}
      {blockers && (
        <p className={clsx(META, "text-soft")}>
          <Ban className={ICON} aria-hidden />
          <span className="truncate">Blocked by {blockers}</span>
        </p>
      )}
      <Outcome task={task} tabStop={tabStop} />
      <Facts task={task} project={project} agent={agent} sandbox={sandbox} />
    </article>
  );
});

/** Project, agent, sandbox, duration, diff size and cost. */
function Facts({ task, project, agent, sandbox }: Pick<CardProps, "task" | "project" | "agent" | "sandbox">) {
  const timed = timedAttempt(task);
  const spent = spentOn(task);
  const model = modelOf(task);
  const attempts = currentAttempts(task).length || task.wanted.length;
  const shown: ReactNode[] = [];
  if (project)
    shown.push(
      <span key="project" className="max-w-full truncate text-soft">
        {project}
      </span>,
    );
  if (agent) {
    shown.push(
      <span key="agent" className={META}>
        <Bot className={ICON} aria-hidden />
        <span className="truncate">{model ? `${agent}, ${model}` : agent}</span>
      </span>,
    );
  }
  if (attempts > 1)
    shown.push(
      <Fact key="attempts" icon={<Layers className={ICON} aria-hidden />}>
        {pluralize(attempts, "attempt")}
      </Fact>,
    );
  if (sandbox && sandbox !== "destroyed") {
    shown.push(
      <Fact key="sandbox" icon={<Box className={ICON} aria-hidden />}>
        sandbox {SANDBOXES[sandbox].text.toLowerCase()}
      </Fact>,
    );
  }
  if (timed) {
    shown.push(
      <Fact key="clock" icon={<Clock className={ICON} aria-hidden />} label="Elapsed">
        <WorkTime attempt={timed} />
      </Fact>,
    );
  }
  const diff = leadingAttempt(task)?.diff;
  if (diff && (diff.added || diff.removed))
    shown.push(
      <span key="diff" title={pluralize(diff.files, "file")}>
        <span className="sr-only">Lines changed</span> <span className="text-ok">+{diff.added}</span>{" "}
        <span className="text-bad">−{diff.removed}</span>
      </span>,
    );
  if (spent)
    shown.push(
      <Fact key="spent" label={spent.estimated ? `Cost. ${ESTIMATED}` : "Cost"}>
        {formatCost(spent.usd, spent.estimated)}
        {spent.hasUnpriced && "+"}
      </Fact>,
    );
  shown.push(
    <span key="age" className="ml-auto">
      <span className="sr-only">Created</span> <Ago at={task.createdAt} />
    </span>,
  );
  return (
    <div className="flex flex-wrap items-center gap-x-2.5 gap-y-0.5 text-2xs text-faint tabular-nums">{shown}</div>
  );
}

function Fact({ icon, label, children }: { icon?: ReactNode; label?: string; children: ReactNode }) {
  return (
    <span className={META} title={label}>
      {icon}
      {label && <span className="sr-only">{label}</span>}
      {children}
    </span>
  );
}

/** Whether the click opens a new tab or window, which is left to the browser. */
function opensElsewhere(event: MouseEvent): boolean {
  return Boolean(event.button) || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey;
}

/** The result: the pull request on the forge, or the changes of the pushed branch, with the checks. */
function Outcome({ task, tabStop }: { task: TaskCard; tabStop: boolean }) {
  const { open } = useActions();
  const pull = task.pullRequest;
  const result = leadingAttempt(task)?.verified ?? null;
  const isHidden = isRunning(task) || (result && hasFailed(task)); // "Verified" on a failed task would mislead
  const verified = isHidden ? null : result;
  if (!pull && verified === null) return null;
  const numberText = pull?.number ? `#${pull.number}` : undefined;
  const forgeUrl = numberText && /^https?:/.test(pull?.url ?? "") ? sanitizeHref(pull?.url) : undefined;
  const Icon = numberText ? GitPullRequest : GitBranch;
  const label = pull && (
    <Badge
      tone={pull.draft ? "idle" : PULLS[pull.state].tone}
      title={`${PULLS[pull.state].text}${pull.draft ? ", draft" : ""}`}
    >
      <Icon className={ICON} aria-hidden />
      <span className="sr-only">{numberText ? "Pull request" : "Branch"}</span>
      <span className="truncate">{numberText ?? pull.headBranch}</span>
      {pull.state !== "pushed" && <span>{pull.draft ? "draft" : PULLS[pull.state].text.toLowerCase()}</span>}
    </Badge>
  );
  return (
    <div className="flex min-w-0 flex-wrap items-center gap-1">
      {label && (
        <a
          {...(forgeUrl
            ? { href: forgeUrl, target: "_blank", rel: "noreferrer noopener" }
            : {
                href: `/tasks/${encodeURIComponent(task.id)}?tab=changes`,
                onClick: (event: MouseEvent) => {
                  if (opensElsewhere(event)) return;
                  event.preventDefault();
                  open(task, "changes");
                },
              })}
          draggable={false}
          tabIndex={tabStop ? 0 : -1}
          className="inline-flex min-w-0 rounded hover:underline"
        >
          {label}
        </a>
      )}
      {pull && pull.checks !== "none" && <Check tone={CHECKS[pull.checks].tone} text={CHECKS[pull.checks].text} />}
      {verified !== null && (!pull || pull.checks === "none") && (
        <Check tone={verified ? "ok" : "bad"} text={verified ? "Verified" : "Not verified"} />
      )}
    </div>
  );
}

function Check({ tone, text }: { tone: "ok" | "bad" | "warn" | "info" | "accent" | "idle"; text: string }) {
  const Icon = tone === "ok" ? CircleCheck : tone === "bad" ? CircleX : CircleAlert;
  return (
    <Badge tone={tone}>
      <Icon className={ICON} aria-hidden /> {text}
    </Badge>
  );
}
