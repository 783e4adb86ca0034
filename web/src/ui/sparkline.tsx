/** A small line chart. `points` are oldest first, without unknown values. */
export function Sparkline({
  points,
  max,
  label,
  tone = "var(--accent)",
}: {
  points: number[];
  max: number;
  label: string;
  tone?: string;
}) {
  const width = 200;
  const height = 40;
  const top = Math.max(max, ...points, Number.MIN_VALUE);
  const place = (value: number, index: number) =>
    `${((index / Math.max(points.length - 1, 1)) * width).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`;
  const line = points.map(place).join(" ");
  return (
    <svg
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={label}
      className="h-10 w-full"
    >
      {points.length > 1 && (
        <>
          <polygon points={`0,${height} ${line} ${width},${height}`} fill={tone} opacity={0.12} />
          <polyline points={line} fill="none" stroke={tone} strokeWidth={1.5} vectorEffect="non-scaling-stroke" />
        </>
      )}
    </svg>
  );
}
