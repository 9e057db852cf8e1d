// Package measure has the parts that the measurements of both suites share.
package measure

import (
	"cmp"
	"math"
	"os"
	"slices"
	"strconv"
)

// Number returns a number from the environment, or the other one.
func Number(name string, otherwise int) int {
	number, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
	if err != nil {
		panic(err)
	}
	return number
}

// Percentile returns the smallest value that is at least as large as this percentage of the values.
func Percentile(values []float64, percent int) float64 {
	rank := math.Ceil(float64(len(values)*percent) / 100)
	return slices.Sorted(slices.Values(values))[int(rank)-1]
}

// Above returns how many values are larger than a bound.
func Above(values []float64, bound float64) int {
	count := 0
	for _, value := range values {
		if value > bound {
			count++
		}
	}
	return count
}
