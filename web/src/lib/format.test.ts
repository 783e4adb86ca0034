import { expect, it } from "vitest";
import { formatBytes, formatCost, formatPeriod, formatPreciseDuration, formatRoughDuration } from "./format";

it("formats durations like the CLI", () => {
  expect([0.44, 2.5, 3, 9.97, 12.6, 59.6, 184.9].map(formatPreciseDuration)).toEqual([
    "0.4s", "2.5s", "3s", "10s", "13s", "1m 0s", "3m 5s",
  ]); // biome-ignore format: one line
});

it("formats sizes like the CLI, in units of 1024", () => {
  expect([512, 1536, 3 * 2 ** 20, 24 * 2 ** 30, 2 ** 41].map(formatBytes)).toEqual([
    "512 B", "1.5 KiB", "3.0 MiB", "24 GiB", "2.0 TiB",
  ]); // biome-ignore format: one line
});

it("formats configured durations without empty units", () => {
  expect([0, 90, 300, 3600, 5400].map(formatPeriod)).toEqual(["0 s", "1 min 30 s", "5 min", "1 h", "1 h 30 min"]);
});

it("formats rough durations", () => {
  expect([5.4, 60, 3547, 7200, 200_000].map(formatRoughDuration)).toEqual(["5 s", "1 min", "59 min", "2 h", "2 d"]);
});

it("marks costs that contain an estimate", () => {
  expect([formatCost(0.12, true), formatCost(0.001, true), formatCost(0, true), formatCost(0.12)]).toEqual([
    "≈ $0.12", "≈ <$0.01", "$0", "$0.12",
  ]); // biome-ignore format: one line
});
