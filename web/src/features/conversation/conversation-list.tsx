import { defaultRangeExtractor, elementScroll, useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, LoaderCircle } from "lucide-react";
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Turn } from "@/api/types";
import { Button } from "@/ui/button";
import { MarkdownBudget } from "@/ui/markdown";
import { AskRow } from "./ask";
import { FoldContext } from "./fold";
import { recordOrEmpty, textOrEmpty } from "./message-parts";
import { ImageRow, PromptRow, SystemRow, TextRow, ThoughtRow } from "./message-rows";
import { PlanRow } from "./plan";
import type { Row } from "./rows";
import { ToolCallRow } from "./tool-call";
import { TurnLine, Working } from "./turn-line";

const NEAR_END = 48;
const NEAR_START = 600;
const BY_HAND_MS = 1000;

type List = Parameters<typeof elementScroll<HTMLDivElement>>[2];
type ScrollOptions = Parameters<typeof elementScroll>[1];

interface ConversationListProps {
  rows: Row[];
  turns: ReadonlyMap<string, Turn>;
  /** The turn in progress. */
  running: Turn | undefined;
  hasEarlier: boolean;
  loadingEarlier: boolean;
  loadEarlier: () => void;
  /** The session belongs to a task: the task's own turns are retried by the task, not here. */
  ofTask: boolean;
  /** The project whose model providers the agent uses. */
  projectId: string | undefined;
  agent: string | undefined;
  /** There is no sandbox in which a turn could be retried. */
  lacksSandbox: boolean;
  /** How many messages were sent from here. A change scrolls to the end. */
  sent: number;
}

/** The transcript as a virtual list. It follows new messages while the user is at the end. */
export function ConversationList(listed: ConversationListProps) {
  const {
    rows,
    turns,
    running,
    hasEarlier,
    loadingEarlier,
    loadEarlier,
    ofTask,
    projectId,
    agent,
    lacksSandbox,
    sent,
  } = listed;
  const frame = useRef<HTMLDivElement>(null);
  const [following, setFollowingState] = useState(true);
  const isFollowing = useRef(true); // the state before React has rendered it
  const setFollowing = useCallback((value: boolean) => {
    isFollowing.current = value;
    setFollowingState(value);
  }, []);
  const [held, setHeld] = useState(false);
  const [away, setAway] = useState(false);
  const [unread, setUnread] = useState(false);
  const folds = useMemo(() => {
    const touched = () => {
      setFollowing(false);
      setHeld(true);
    };
    return { open: new Map<string, boolean>(), touched };
  }, [setFollowing]);
  const kept = useMemo(
    () => rows.flatMap((row, index) => (row.kind === "ask" && row.ask.status === "pending" ? [index] : [])),
    [rows],
  );
  const count = rows.length + (running ? 1 : 0);

  const virtual = useVirtualizer({
    count,
    getScrollElement: () => frame.current,
    estimateSize: (index) => estimateHeight(rows[index]),
    getItemKey: useCallback((index: number) => rows[index]?.key ?? "working", [rows]),
    overscan: 6,
    gap: 10,
    paddingStart: 12,
    paddingEnd: 12,
    anchorTo: held ? "start" : "end", // An expanded row grows downwards, under the pointer.
    scrollEndThreshold: 1,
    // While the list follows new messages, the end is where it scrolls to, whatever the virtual list wants to keep in view.
    scrollToFn: useCallback((offset: number, options: ScrollOptions, list: List) => {
      if (isFollowing.current && list.scrollElement) scrollToEnd(list.scrollElement);
      else elementScroll(offset, options, list);
    }, []),
    // Keep pending forms mounted while they are scrolled out of view.
    rangeExtractor: useCallback(
      (range: Parameters<typeof defaultRangeExtractor>[0]) =>
        [...new Set([...defaultRangeExtractor(range), ...kept])].sort((one, other) => one - other),
      [kept],
    ),
  });

  const size = virtual.getTotalSize();
  // biome-ignore lint/correctness/useExhaustiveDependencies: anything that changes the height
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    if (following) scrollToEnd(element);
    else setAway(isAway(element));
  }, [size, rows, following]);

  // the message box grows and shrinks, and so does a phone's keyboard: the end stays visible
  useEffect(() => {
    const element = frame.current;
    if (!element || !following) return;
    const observer = new ResizeObserver(() => scrollToEnd(element));
    observer.observe(element);
    return () => observer.disconnect();
  }, [following]);

  useEffect(() => {
    if (sent) setFollowing(true);
  }, [sent, setFollowing]);

  const last = rows[rows.length - 1]?.key;
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new `last` means a new message
  useEffect(() => {
    if (away) setUnread(true);
  }, [last]);

  const moved = useRef(Number.NEGATIVE_INFINITY); // not 0: a page's clock starts there, so its first second would count as input
  const byHand = () => {
    moved.current = performance.now();
  };
  const scrolled = () => {
    const element = frame.current;
    if (!element) return;
    const far = isAway(element);
    setAway(far);
    if (!far) setUnread(false);
    // Growing content also fires scroll events: only user input stops following.
    if (performance.now() - moved.current < BY_HAND_MS) {
      setFollowing(!far);
      setHeld(false);
    }
    if (hasEarlier && !loadingEarlier && element.scrollTop < NEAR_START && !following) loadEarlier();
  };
  // biome-ignore lint/correctness/useExhaustiveDependencies: at the very top no scroll event fires
  useEffect(() => {
    const element = frame.current;
    if (!element || !hasEarlier || loadingEarlier) return;
    if (element.scrollHeight <= element.clientHeight || (!following && element.scrollTop < NEAR_START)) loadEarlier();
  }, [size, hasEarlier, loadingEarlier]);

  return (
    <FoldContext value={folds}>
      <div className="relative flex min-h-0 flex-1 flex-col">
        {loadingEarlier && (
          <div className="absolute inset-x-0 top-1 z-10 flex justify-center" role="status">
            <span className="flex items-center gap-1.5 rounded-full border bg-raised px-2 py-0.5 text-xs text-soft">
              <LoaderCircle className="size-3 animate-spin" aria-hidden /> Loading earlier messages
            </span>
          </div>
        )}
        <section
          ref={frame}
          onScroll={scrolled}
          onWheel={byHand}
          onTouchMove={byHand}
          onPointerDown={byHand}
          onPointerMove={(event) => event.buttons && byHand()}
          onKeyDown={byHand}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, so the keyboard must reach it
          tabIndex={0}
          aria-label="Conversation"
          className="min-h-0 flex-1 overflow-y-auto px-2 [overflow-anchor:none] sm:px-4"
          data-testid="conversation"
        >
          <div className="relative mx-auto w-full max-w-3xl" style={{ height: size }}>
            <MarkdownBudget
              texts={virtual
                .getVirtualItems()
                .flatMap((item) => textsOf(rows[item.index]))
                .reverse()}
            >
              {virtual.getVirtualItems().map((item) => {
                const row = rows[item.index];
                return (
                  <div
                    key={item.key}
                    ref={virtual.measureElement}
                    data-index={item.index}
                    className="absolute inset-x-0 top-0"
                    style={{ transform: `translateY(${item.start}px)` }}
                  >
                    {row ? (
                      <ConversationRow
                        row={row}
                        turn={turnOf(row, turns)}
                        live={running !== undefined && turnOf(row, turns)?.id === running.id}
                        retryable={item.index === rows.length - 1 && !running && !lacksSandbox}
                        ofTask={ofTask}
                        projectId={projectId}
                        agent={agent}
                      />
                    ) : (
                      running && <Working turn={running} />
                    )}
                  </div>
                );
              })}
            </MarkdownBudget>
          </div>
        </section>
        {away && (
          <div className="absolute inset-x-0 bottom-2 flex justify-center">
            <Button size="sm" className="rounded-full shadow-float" onClick={() => setFollowing(true)}>
              <ArrowDown className="size-3.5" aria-hidden /> {unread ? "New messages" : "Scroll to end"}
            </Button>
          </div>
        )}
      </div>
    </FoldContext>
  );
}

function scrollToEnd(element: HTMLElement): void {
  element.scrollTop = element.scrollHeight;
}

function isAway(element: HTMLElement): boolean {
  return element.scrollHeight - element.scrollTop - element.clientHeight > NEAR_END;
}

function estimateHeight(row: Row | undefined): number {
  if (!row || row.kind === "turn") return 30;
  if (row.kind === "ask") return row.ask.status === "pending" ? 160 : 30;
  const part = row.message.parts[0];
  if (part?.type === "tool_call" || part?.type === "thought") return 30;
  return 40 + Math.min(600, Math.ceil(textOrEmpty(part?.text).length / 90) * 22);
}

/** The formatted texts of a row. */
function textsOf(row: Row | undefined): string[] {
  return row?.kind === "message" ? row.message.parts.map((part) => textOrEmpty(part.text)) : [];
}

function turnOf(row: Row, turns: ReadonlyMap<string, Turn>): Turn | undefined {
  if (row.kind === "turn") return row.turn;
  const id = row.kind === "ask" ? row.ask.turnId : row.message.turnId;
  return id ? turns.get(id) : undefined;
}

interface RowProps {
  row: Row;
  turn: Turn | undefined;
  live: boolean;
  retryable: boolean;
  ofTask: boolean;
  projectId: string | undefined;
  agent: string | undefined;
}

const ConversationRow = memo(function OneRow({ row, turn, live, retryable, ofTask, projectId, agent }: RowProps) {
  if (row.kind === "turn")
    return (
      <TurnLine
        turn={row.turn}
        denied={row.denied}
        retryable={retryable && !(ofTask && row.turn.origin !== "person")}
        projectId={projectId}
        agent={agent}
        ofTask={ofTask}
      />
    );
  if (row.kind === "ask") return <AskRow ask={row.ask} />;
  const { message, writing } = row;
  if (message.role === "user") return <PromptRow message={message} origin={turn?.origin} />;
  if (message.role === "system") return <SystemRow message={message} />;
  const part = recordOrEmpty(message.parts[0]);
  if (part.type === "text") return <TextRow text={textOrEmpty(part.text)} writing={writing} />;
  if (part.type === "thought") return <ThoughtRow id={message.id} text={textOrEmpty(part.text)} writing={writing} />;
  if (part.type === "tool_call") return <ToolCallRow message={message} live={live} allowed={row.allowed} />;
  if (part.type === "plan") return <PlanRow message={message} live={live} />;
  if (part.type === "image") return <ImageRow part={part} />;
  return null;
}, isSameRow);

/** Row objects are rebuilt on every update: compare what they show, so that unchanged rows do not re-render. */
function isSameRow(before: RowProps, now: RowProps): boolean {
  if (
    before.live !== now.live ||
    before.retryable !== now.retryable ||
    before.ofTask !== now.ofTask ||
    before.projectId !== now.projectId ||
    before.agent !== now.agent ||
    before.turn?.origin !== now.turn?.origin
  )
    return false;
  if (before.row.kind === "message" && now.row.kind === "message")
    return (
      before.row.message === now.row.message &&
      before.row.writing === now.row.writing &&
      before.row.allowed === now.row.allowed
    );
  if (before.row.kind === "ask" && now.row.kind === "ask") return before.row.ask === now.row.ask;
  return before.row.kind === "turn" && now.row.kind === "turn" && before.row.turn === now.row.turn;
}
