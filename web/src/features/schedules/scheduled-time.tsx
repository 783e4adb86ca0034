/** A time in the schedule's own time zone. */
export function ScheduledTime({ at, zone }: { at: string; zone: string }) {
  const date = new Date(at);
  return (
    <time dateTime={at} title={`${date.toLocaleString()} local time`}>
      {date.toLocaleString(undefined, {
        timeZone: zone,
        weekday: "short",
        day: "numeric",
        month: "short",
        hour: "2-digit",
        minute: "2-digit",
      })}
    </time>
  );
}
